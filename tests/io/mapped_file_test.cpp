// Mapping whole files: their bytes, their identity, and files that changed after they were opened.
#include "io/mapped_file.h"

#include <gmock/gmock.h>

#include <cstring>

#include "error_matchers.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

std::string text_of(const MappedFile& file) {
  std::string text(file.bytes().size(), '?');
  if (!text.empty()) std::memcpy(text.data(), file.bytes().data(), text.size());
  return text;
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const ScratchFolder folder;
  const auto mapped = MappedFile::map(*InputFile::open(folder.write("a.bin", "0123456789")));
  EXPECT_EQ(text_of(*mapped), "0123456789");  // the file object is gone: the mapping stands alone
}

TEST(MappedFile, OutlivesTheNameOfTheFile) {
  const ScratchFolder folder;
  const auto path = folder.write("a.bin", "abc");
  const auto mapped = MappedFile::map(*InputFile::open(path));
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(*mapped), "abc");
}

TEST(MappedFile, OfAnEmptyFileIsEmpty) {
  const ScratchFolder folder;
  EXPECT_TRUE(MappedFile::map(*InputFile::open(folder.write("a.bin", "")))->bytes().empty());
}

TEST(MappedFile, KeepsToTheSizeAtOpening) {
  const ScratchFolder folder;
  const auto path = folder.write("a.bin", "abc");
  const auto file = InputFile::open(path);
  std::ofstream(path, std::ios::app) << "def";
  EXPECT_EQ(text_of(*MappedFile::map(*file)), "abc");
}

TEST(MappedFile, RefusesAFileThatShrank) {
  const ScratchFolder folder;
  const auto path = folder.write("a.bin", "0123456789");
  const auto file = InputFile::open(path);
  std::filesystem::resize_file(path, 4);
  EXPECT_THAT(
      [&] { MappedFile::map(*file); },
      Fails(ErrorCode::bad_offset, testing::StrEq("a.bin: the file shrank after it was opened: got 4 bytes, expected 10")));
}

TEST(FileIdentity, IsThatOfTheFileAndNotOfThePath) {
  const ScratchFolder folder;
  const auto path = folder.write("a.bin", "abc");
  std::filesystem::create_symlink(path, folder.path() / "link.bin");
  std::filesystem::create_hard_link(path, folder.path() / "hard.bin");
  const FileIdentity identity = identity_of(*InputFile::open(path));
  EXPECT_EQ(identity_of(*InputFile::open(folder.path() / "link.bin")), identity);
  EXPECT_EQ(identity_of(*InputFile::open(folder.path() / "hard.bin")), identity);
  EXPECT_NE(identity_of(*InputFile::open(folder.write("b.bin", "abc"))), identity);
}

}  // namespace
}  // namespace transload
