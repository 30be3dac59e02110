// A bundle that appears whole or not at all: staging, locks, overwriting and failures.
#include "io/output_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "error_matchers.h"
#include "io/many_runs.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void write_bundle(const fs::path& destination, std::string_view text, bool overwrite = false) {
  OutputDirectory output(destination, overwrite);
  output.write_file("a.json", text);
  output.commit();
}

TEST(OutputDirectory, AppearsWithItsFilesOnCommit) {
  const ScratchFolder folder;
  const fs::path out = folder.path() / "out";
  {
    OutputDirectory output(out, false);
    OutputFile& weights = output.create("weights.bin", 10);
    weights.write_at(7, std::as_bytes(std::span("xyz", 3)));
    weights.write_at(0, std::as_bytes(std::span("0123456", 7)));
    output.write_file("a.json", "{}");
    output.write_file("empty", "");
    EXPECT_FALSE(fs::exists(out));
    output.commit();
    EXPECT_TRUE(fs::exists(out));
    EXPECT_GE(output.flush_seconds(), 0.0);
  }
  EXPECT_THAT(folder.names(), ElementsAre("out"));
  EXPECT_THAT(names_in(out), ElementsAre("a.json", "empty", "weights.bin"));
  EXPECT_EQ(read_text_file(out / "weights.bin"), "0123456xyz");
  EXPECT_EQ(read_text_file(out / "a.json"), "{}");
}

TEST(OutputDirectory, LeavesNothingWithoutCommit) {
  const ScratchFolder folder;
  {
    OutputDirectory output(folder.path() / "x" / "y" / "out", false);
    output.write_file("a.json", "{}");
    EXPECT_THAT(names_in(folder.path() / "x" / "y"), ElementsAre(testing::StartsWith(".out.transload-")));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(OutputDirectory, KeepsParentsThatWereThereBefore) {
  const ScratchFolder folder;
  fs::create_directory(folder.path() / "x");
  { OutputDirectory output(folder.path() / "x" / "y" / "out", false); }
  EXPECT_THAT(folder.names(), ElementsAre("x"));
  EXPECT_THAT(names_in(folder.path() / "x"), IsEmpty());
  write_bundle(folder.path() / "x" / "y" / "out", "1");
  EXPECT_EQ(read_text_file(folder.path() / "x" / "y" / "out" / "a.json"), "1");
}

TEST(OutputDirectory, TakesAnEmptyFolderAndATrailingSlash) {
  const ScratchFolder folder;
  fs::create_directory(folder.path() / "out");
  write_bundle(folder.path().string() + "/out//", "1");
  EXPECT_EQ(read_text_file(folder.path() / "out" / "a.json"), "1");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, FollowsASymbolicLinkToAFolder) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "disk" / "real");
  fs::create_directory_symlink("disk/real", folder.path() / "out");
  write_bundle(folder.path() / "out", "1");
  write_bundle(folder.path() / "out", "2", true);
  EXPECT_TRUE(fs::is_symlink(folder.path() / "out"));
  EXPECT_EQ(read_text_file(folder.path() / "disk" / "real" / "a.json"), "2");
  EXPECT_THAT(names_in(folder.path() / "disk"), ElementsAre("real"));
}

TEST(OutputDirectory, RefusesAFolderThatIsNotEmpty) {
  const ScratchFolder folder;
  write_bundle(folder.path() / "out", "1");
  EXPECT_THAT([&] { OutputDirectory(folder.path() / "out", false); },
              Fails(ErrorCode::destination_exists, AllOf(HasSubstr("/out: "), HasSubstr("not empty"))));
  EXPECT_EQ(read_text_file(folder.path() / "out" / "a.json"), "1");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, OverwritesTheWholeFolder) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "out" / "old" / "deep");
  folder.write("out/old/deep/file", "x");
  {
    OutputDirectory output(folder.path() / "out", true);
    output.write_file("a.json", "2");
    EXPECT_TRUE(fs::exists(folder.path() / "out" / "old"));
    output.commit();
  }
  EXPECT_THAT(names_in(folder.path() / "out"), ElementsAre("a.json"));
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, KeepsTheOldFolderWhenOverwritingFails) {
  const ScratchFolder folder;
  write_bundle(folder.path() / "out", "1");
  {
    OutputDirectory output(folder.path() / "out", true);
    output.write_file("a.json", "2");
  }
  EXPECT_EQ(read_text_file(folder.path() / "out" / "a.json"), "1");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, NeverReplacesAFile) {
  const ScratchFolder folder;
  folder.write("out", "precious");
  fs::create_symlink("nowhere", folder.path() / "dangling");
  for (const bool overwrite : {false, true}) {
    EXPECT_THAT([&] { OutputDirectory(folder.path() / "out", overwrite); },
                Fails(ErrorCode::destination_exists, HasSubstr("got a file")));
    EXPECT_THAT([&] { OutputDirectory(folder.path() / "dangling", overwrite); },
                Fails(ErrorCode::destination_exists, HasSubstr("symbolic link to nothing")));
  }
  EXPECT_EQ(read_text_file(folder.path() / "out"), "precious");
  EXPECT_THAT([&] { OutputDirectory(folder.path() / "out" / "below", false); },
              Fails(ErrorCode::io_failure, HasSubstr("Not a directory")));
}

TEST(OutputDirectory, RefusesPlacesThatAreNoFolderOfTheirOwn) {
  for (const char* path : {"", "/", "//", ".", "..", "x/..", "x/."}) {
    EXPECT_THAT([&] { OutputDirectory(path, true); },
                Fails(ErrorCode::usage, HasSubstr("expected a path that ends in a folder's name")));
  }
  const fs::path current = fs::current_path();
  EXPECT_THAT([&] { OutputDirectory(current, true); }, Fails(ErrorCode::usage, HasSubstr("current folder")));
  if (current.has_relative_path() && current.parent_path().has_relative_path()) {
    EXPECT_THAT([&] { OutputDirectory(current.parent_path(), true); }, Fails(ErrorCode::usage, HasSubstr("current folder")));
  }
  const ScratchFolder folder;
  fs::create_directory_symlink("/", folder.path() / "root");
  EXPECT_THAT([&] { OutputDirectory(folder.path() / "root", true); }, Fails(ErrorCode::usage, HasSubstr("current folder")));
}

TEST(OutputDirectory, RefusesAFolderThatWasFilledMeanwhile) {
  const ScratchFolder folder;
  {
    OutputDirectory output(folder.path() / "out", false);
    output.write_file("a.json", "2");
    fs::create_directory(folder.path() / "out");
    folder.write("out/theirs", "1");
    EXPECT_THAT([&] { output.commit(); }, Fails(ErrorCode::destination_exists, HasSubstr("filled while this run was working")));
  }
  EXPECT_THAT(names_in(folder.path() / "out"), ElementsAre("theirs"));
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, RemovesStagingThatNobodyHolds) {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / ".out.transload-0123456789abcdef");
  folder.write(".out.transload-0123456789abcdef/weights.bin", "half");
  const std::vector<std::string> strangers = {".other.transload-0123456789abcdef", ".out.transload-short",
                                              ".out.transload-0123456789ABCDEF"};
  for (const auto& name : strangers) fs::create_directory(folder.path() / name);
  write_bundle(folder.path() / "out", "1");
  EXPECT_EQ(folder.names(), (std::set<std::string>{"out", strangers[0], strangers[1], strangers[2]}));
}

TEST(OutputDirectory, KeepsStagingOfARunningProcess) {
  const ScratchFolder folder;
  OutputDirectory running(folder.path() / "out", false);
  running.write_file("a.json", "1");
  write_bundle(folder.path() / "out", "2");
  EXPECT_THAT([&] { running.commit(); }, Fails(ErrorCode::destination_exists, HasSubstr("filled")));
  EXPECT_EQ(read_text_file(folder.path() / "out" / "a.json"), "2");
}

// Runs `body` in a forked child and returns its exit code, or 128 + the signal that ended it.
template <typename Body>
int run_in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(OutputDirectory, IsCleanedUpByTheNextRunAfterAKill) {
  const ScratchFolder folder;
  EXPECT_EQ(run_in_child([&]() -> int {
              OutputDirectory output(folder.path() / "out", false);
              output.write_file("a.json", "half");
              ::raise(SIGKILL);
              return 0;
            }),
            128 + SIGKILL);
  EXPECT_EQ(folder.names().size(), 1U);
  write_bundle(folder.path() / "out", "1");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputDirectory, ReportsAFileLimitAndLeavesNothing) {
  const ScratchFolder folder;
  for (const bool sparse : {false, true}) {
    std::optional<int> exit;
    exit = run_in_child([&]() -> int {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{1 << 20, 1 << 20};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        OutputDirectory output(folder.path() / "out", false);
        output.create("small.bin", 1 << 20, sparse);
        output.create("weights.bin", (1 << 20) + 1, sparse);
      } catch (const Error& error) {
        const std::string_view text = error.what();
        const bool right = text.starts_with("weights.bin: cannot ") && text.ends_with("1048577 bytes: File too large");
        return right ? exit_code(error.code()) : 99;
      }
      return 0;
    });
    EXPECT_EQ(exit, 5);
    EXPECT_THAT(folder.names(), IsEmpty());
  }
}

TEST(OutputDirectory, ReportsAFullDiskBeforeWriting) {
  const ScratchFolder folder;
  EXPECT_THAT(
      [&] {
        OutputDirectory output(folder.path() / "out", false);
        output.create("weights.bin", uint64_t{1} << 46);
      },
      Fails(ErrorCode::io_failure, HasSubstr("weights.bin: cannot reserve 70368744177664 bytes: ")));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(OutputDirectory, ReservesBlocksUnlessSparse) {
  const ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  output.create("full.bin", 8 << 20);
  output.create("sparse.bin", uint64_t{1} << 40, true);
  output.commit();
  struct stat full {};
  struct stat sparse {};
  ASSERT_EQ(::stat((folder.path() / "out" / "full.bin").c_str(), &full), 0);
  ASSERT_EQ(::stat((folder.path() / "out" / "sparse.bin").c_str(), &sparse), 0);
  EXPECT_EQ(sparse.st_size, off_t{1} << 40);
  EXPECT_LT(sparse.st_blocks, 1000);
  EXPECT_GE(full.st_blocks * 512, 8 << 20);
}

TEST(OutputDirectory, RefusesFileNamesThatAreNotPlainOrUsedTwice) {
  const ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  for (const std::string_view name : {"", ".", "..", "a/b", "/a"}) {
    EXPECT_THAT([&] { output.write_file(name, "x"); }, Fails(ErrorCode::internal, HasSubstr("expected a plain file name")));
  }
  output.write_file("a", "x");
  EXPECT_THAT([&] { output.write_file("a", "x"); }, Fails(ErrorCode::io_failure, HasSubstr("a: cannot create: File exists")));
}

TEST(OutputDirectory, RefusesWritesPastTheEndOfAFile) {
  const ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  const OutputFile& file = output.create("a", 4);
  EXPECT_THAT([&] { file.write_at(2, std::as_bytes(std::span("abc", 3))); },
              Fails(ErrorCode::internal, HasSubstr("got end 5, expected at most 4")));
}

TEST(OutputDirectory, ReadsBackWhatWasWritten) {
  const ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  const OutputFile& file = output.create("a", 4);
  file.write_at(0, std::as_bytes(std::span("abcd", 4)));
  std::string text(3, ' ');
  file.read_at(1, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "bcd");
  EXPECT_THAT([&] { file.read_at(2, std::as_writable_bytes(std::span(text))); },
              Fails(ErrorCode::internal, HasSubstr("a@2: read past the end: got end 5, expected at most 4")));
}

TEST(OutputDirectory, NamesAFolderItMayNotWriteTo) {
  EXPECT_THAT([] { OutputDirectory("/proc/transload/out", false); },
              Fails(ErrorCode::io_failure, HasSubstr("/proc/transload: cannot create folder")));
}

// Two runs that start at the same moments must not remove each other's staging folders.
TEST(OutputDirectory, SurvivesManyRunsAtOnce) {
  const ScratchFolder folder;
  run_at_once([&](int) {
    for (int turn = 0; turn < 40; ++turn) write_bundle(folder.path() / "out", "1", true);
  });
  EXPECT_THAT(folder.names(), ElementsAre("out"));
  EXPECT_EQ(read_text_file(folder.path() / "out" / "a.json"), "1");
}

}  // namespace
}  // namespace transload
