// write_file_whole: the whole text or the old file, and nothing else in the folder.
#include "io/whole_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "error_matchers.h"
#include "io/file.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(WholeFile, WritesANewFileAndReplacesAnOldOne) {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "report.json";
  write_file_whole(path, "first, and longer");
  EXPECT_EQ(read_text_file(path), "first, and longer");
  write_file_whole(path, "second");
  EXPECT_EQ(read_text_file(path), "second");
  write_file_whole(path, "");
  EXPECT_EQ(fs::file_size(path), 0U);
  EXPECT_EQ(folder.names(), std::set<std::string>{"report.json"});
}

TEST(WholeFile, GivesTheModeOfAnOrdinaryFileAndKeepsThatOfAnOldOne) {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "report.json";
  const mode_t mask = ::umask(027);
  write_file_whole(path, "new");
  ::umask(mask);
  EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), 0640U);
  fs::permissions(path, fs::perms(0604));
  write_file_whole(path, "again");
  EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), 0604U);
}

TEST(WholeFile, WritesThroughASymbolicLink) {
  const ScratchFolder folder;
  fs::create_directory(folder.path() / "there");
  const fs::path target = folder.write("there/target", "old");
  fs::create_symlink(target, folder.path() / "link");
  write_file_whole(folder.path() / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read_text_file(target), "new");
}

TEST(WholeFile, RefusesWhatIsNoFileAndNamesIt) {
  const ScratchFolder folder;
  fs::create_directory(folder.path() / "taken");
  folder.write("file", "text");
  const struct {
    fs::path path;
    std::string message;
  } cases[] = {
      {folder.path() / "taken", "taken: cannot write: got a folder"},
      {"/dev/null", "/dev/null: cannot write: got a folder or a device"},
      {folder.path() / "absent" / "report.json", "report.json: cannot create: No such file"},
      {folder.path() / "file" / "report.json", "report.json: "},
      {folder.path() / "new" / "", "a path without a file name"},
      {"", "a path without a file name"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.path);
    EXPECT_THAT([&] { write_file_whole(each.path, "bytes"); }, Fails(ErrorCode::io_failure, HasSubstr(each.message)));
  }
  EXPECT_EQ(folder.names(), (std::set<std::string>{"taken", "file"}));
}

TEST(WholeFile, LeavesTheOldFileAndNothingElseWhenTheBytesDoNotFit) {
  const ScratchFolder folder;
  const fs::path path = folder.write("report.json", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT([&] { write_file_whole(path, std::string(10000, 'x')); },
              Fails(ErrorCode::io_failure, HasSubstr("report.json: cannot write: File too large")));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(folder.names(), std::set<std::string>{"report.json"});
}

}  // namespace
}  // namespace transload
