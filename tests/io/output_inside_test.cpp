// Files that join those of a folder one by one, from several processes at once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "error_matchers.h"
#include "io/file.h"
#include "io/many_runs.h"
#include "io/output_directory.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Existing = OutputDirectory::Existing;

void join(const fs::path& folder, const std::string& name, std::string_view text, Existing existing = Existing::replaced) {
  OutputDirectory output = OutputDirectory::inside(folder, existing);
  output.write_file(name, text);
  output.commit();
}

TEST(OutputInside, JoinsTheFilesThatAreThere) {
  const ScratchFolder folder;
  folder.write("rank0", "old");
  {
    OutputDirectory output = OutputDirectory::inside(folder.path());
    output.write_file("rank1", "new");
    EXPECT_FALSE(fs::exists(folder.path() / "rank1"));
    output.commit();
    EXPECT_THAT(folder.names(), ElementsAre("rank0", "rank1"));
  }
  EXPECT_EQ(read_text_file(folder.path() / "rank0"), "old");
  EXPECT_EQ(read_text_file(folder.path() / "rank1"), "new");
}

TEST(OutputInside, ReplacesOrKeepsAFileOfTheSameName) {
  const ScratchFolder folder;
  join(folder.path(), "a", "1");
  join(folder.path(), "a", "2", Existing::kept);
  EXPECT_EQ(read_text_file(folder.path() / "a"), "1");
  join(folder.path(), "a", "3");
  EXPECT_EQ(read_text_file(folder.path() / "a"), "3");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(OutputInside, MakesTheFolderAndItsParents) {
  const ScratchFolder folder;
  join(folder.path() / "x" / "out/", "a", "1");
  EXPECT_EQ(read_text_file(folder.path() / "x" / "out" / "a"), "1");
}

TEST(OutputInside, LeavesNothingWithoutCommit) {
  const ScratchFolder folder;
  {
    OutputDirectory output = OutputDirectory::inside(folder.path() / "x" / "out");
    output.write_file("a", "1");
    EXPECT_TRUE(fs::exists(folder.path() / "x" / "out"));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(OutputInside, MovesFilesInTheOrderOfTheirCreation) {
  const ScratchFolder folder;
  // A folder in the place of the second file stops the commit there.
  fs::create_directories(folder.path() / "b" / "full");
  {
    OutputDirectory output = OutputDirectory::inside(folder.path());
    output.write_file("c", "1");
    output.write_file("b", "1");
    output.write_file("a", "1");
    EXPECT_THAT([&] { output.commit(); }, Fails(ErrorCode::io_failure, AllOf(HasSubstr("/b: "), HasSubstr("cannot rename"))));
  }
  EXPECT_THAT(folder.names(), ElementsAre("b", "c"));
}

TEST(OutputInside, RefusesAPlaceThatIsNoFolder) {
  const ScratchFolder folder;
  folder.write("file", "precious");
  fs::create_symlink("nowhere", folder.path() / "dangling");
  EXPECT_THAT([&] { OutputDirectory::inside(folder.path() / "file"); },
              Fails(ErrorCode::destination_exists, HasSubstr("got a file, expected a folder")));
  EXPECT_THAT([&] { OutputDirectory::inside(folder.path() / "dangling"); },
              Fails(ErrorCode::destination_exists, HasSubstr("symbolic link to nothing")));
  EXPECT_THAT([] { OutputDirectory::inside(""); }, Fails(ErrorCode::usage, HasSubstr("empty path")));
  EXPECT_EQ(read_text_file(folder.path() / "file"), "precious");
}

TEST(OutputInside, RemovesStagingThatNobodyHoldsAndKeepsThatOfOthers) {
  const ScratchFolder folder;
  const fs::path out = folder.path() / "out";
  fs::create_directories(out / ".transload-0123456789abcdef");
  fs::create_directories(out / ".transload-strange");
  // Of a whole export of the same folder that was killed.
  fs::create_directories(folder.path() / ".out.transload-0123456789abcdef");
  OutputDirectory running = OutputDirectory::inside(out);
  running.write_file("rank0", "1");
  join(out, "rank1", "2");
  running.commit();
  EXPECT_THAT(folder.names(), ElementsAre("out"));
  EXPECT_EQ(read_text_file(out / "rank0"), "1");
  EXPECT_EQ(read_text_file(out / "rank1"), "2");
  fs::remove(out / ".transload-strange");
  EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 2);
}

TEST(OutputInside, IsCleanedUpByTheNextRunAfterAKill) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    OutputDirectory output = OutputDirectory::inside(folder.path());
    output.write_file("a", "half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.names().size(), 1U);
  join(folder.path(), "b", "1");
  EXPECT_THAT(folder.names(), ElementsAre("b"));
}

// Processes that work in one folder at once: each file arrives whole, and the one they all bring is the first one's.
TEST(OutputInside, SurvivesManyRunsAtOnce) {
  const ScratchFolder folder;
  const fs::path out = folder.path() / "out";
  run_at_once([&](int i) {
    for (int turn = 0; turn < 20; ++turn) {
      join(out, "config", std::to_string(i), Existing::kept);
      join(out, fmt::format("rank{}-{}", i, turn), "1");
    }
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 6 * 20 + 1);
  EXPECT_EQ(read_text_file(out / "config").size(), 1U);
}

}  // namespace
}  // namespace transload
