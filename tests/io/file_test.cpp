// Reading files: positions, ends, and paths that are not regular files.
#include "io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "error_matchers.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string read_string(const InputFile& file, uint64_t offset, size_t count) {
  std::string text(count, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(InputFile, ReadsAtAnyPosition) {
  const ScratchFolder folder;
  const auto file = InputFile::open(folder.write("a.bin", "0123456789"));
  EXPECT_EQ(file->size(), 10U);
  EXPECT_EQ(file->name(), "a.bin");
  EXPECT_EQ(read_string(*file, 3, 4), "3456");
  EXPECT_EQ(read_string(*file, 0, 10), "0123456789");
  EXPECT_EQ(read_string(*file, 10, 0), "");
}

TEST(InputFile, RefusesToReadPastTheEnd) {
  const ScratchFolder folder;
  const auto file = InputFile::open(folder.write("a.bin", "0123456789"));
  EXPECT_THAT([&] { read_string(*file, 8, 3); },
              Fails(ErrorCode::bad_offset, AllOf(HasSubstr("a.bin@8: "), HasSubstr("got 3 bytes, expected at most 2"))));
  EXPECT_THAT([&] { read_string(*file, ~uint64_t{0}, 3); }, Fails(ErrorCode::bad_offset, HasSubstr("expected at most 0")));
}

TEST(InputFile, NoticesThatTheFileShrank) {
  const ScratchFolder folder;
  const auto path = folder.write("a.bin", std::string(100, 'x'));
  const auto file = InputFile::open(path);
  ASSERT_EQ(::truncate(path.c_str(), 50), 0);
  EXPECT_THAT([&] { read_string(*file, 40, 20); },
              Fails(ErrorCode::bad_offset, AllOf(HasSubstr("a.bin@50: "), HasSubstr("shrank"), HasSubstr("10 more bytes"))));
}

TEST(InputFile, FollowsSymbolicLinksAndKeepsTheNameOfTheLink) {
  const ScratchFolder folder;
  std::filesystem::create_symlink(folder.write("blob", "abc"), folder.path() / "model.safetensors");
  const auto file = InputFile::open(folder.path() / "model.safetensors");
  EXPECT_EQ(file->name(), "model.safetensors");
  EXPECT_EQ(read_string(*file, 0, 3), "abc");
}

TEST(InputFile, NamesAMissingFile) {
  const ScratchFolder folder;
  folder.write("file", "");
  std::filesystem::create_symlink("nowhere", folder.path() / "dangling");
  for (const char* name : {"absent", "dangling", "file/below"}) {
    EXPECT_THAT([&] { InputFile::open(folder.path() / name); }, Fails(ErrorCode::file_missing, HasSubstr(name)));
  }
}

// Opening a pipe without a writer would hang when it is not refused.
TEST(InputFile, RefusesWhatIsNotARegularFile) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { InputFile::open(folder.path() / "pipe"); },
              Fails(ErrorCode::io_failure, HasSubstr("got a pipe, expected a regular file")));
  EXPECT_THAT([&] { InputFile::open(folder.path()); }, Fails(ErrorCode::io_failure, HasSubstr("got a folder")));
  EXPECT_THAT([&] { InputFile::open("/dev/zero"); }, Fails(ErrorCode::io_failure, HasSubstr("got a device")));
}

TEST(ReadTextFile, ReadsWholeFilesUpToItsLimit) {
  const ScratchFolder folder;
  const auto path = folder.write("a.json", "0123456789");
  EXPECT_EQ(read_text_file(path), "0123456789");
  EXPECT_EQ(read_text_file(path, 10), "0123456789");
  EXPECT_THAT([&] { read_text_file(path, 9); }, Fails(ErrorCode::bad_header, HasSubstr("got 10 bytes, expected at most 9")));
  EXPECT_EQ(read_text_file(folder.write("empty", "")), "");
}

TEST(FileDescriptor, ClosesWhatItOwns) {
  const int fd = ::dup(0);
  ASSERT_GE(fd, 0);
  {
    FileDescriptor first(fd);
    FileDescriptor second(std::move(first));
    FileDescriptor third;
    third = std::move(second);
    EXPECT_EQ(third.get(), fd);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(OsError, CarriesTheTextOfErrno) {
  EXPECT_THAT([] { throw_os_error("cannot write", "w.bin", ENOSPC, 12); },
              Fails(ErrorCode::io_failure, testing::StrEq("w.bin@12: cannot write: No space left on device")));
}

}  // namespace
}  // namespace transload
