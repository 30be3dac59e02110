// Codes, exit codes and the rendering of Error.
#include "transload/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <exception>
#include <set>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

TEST(ErrorCodes, HaveDistinctNames) {
  std::set<std::string_view> names;
  for (int i = 0; i < kErrorCodeCount; ++i) names.insert(error_code_name(static_cast<ErrorCode>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kErrorCodeCount));
  EXPECT_EQ(error_code_name(ErrorCode::bad_offset), "bad_offset");
}

TEST(ErrorCodes, GiveTheExitCodeOfTheirClass) {
  const std::set<ErrorCode> usage = {ErrorCode::usage, ErrorCode::destination_exists};
  const std::set<ErrorCode> unsupported = {ErrorCode::config_unsupported, ErrorCode::arch_unknown, ErrorCode::dtype_unsupported,
                                           ErrorCode::op_unsupported,     ErrorCode::format_limit, ErrorCode::quant_unsupported,
                                           ErrorCode::shard_indivisible};
  const std::set<ErrorCode> bugs = {ErrorCode::graph_invalid, ErrorCode::internal};
  for (int i = 0; i < kErrorCodeCount; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const int expected = usage.contains(code)                 ? 2
                         : code == ErrorCode::verify_mismatch ? 3
                         : unsupported.contains(code)         ? 4
                         : code == ErrorCode::io_failure      ? 5
                         : bugs.contains(code)                ? 70
                                                              : 1;
    EXPECT_EQ(exit_code(code), expected) << error_code_name(code);
  }
}

TEST(Error, RendersFileOffsetTensorAndNotes) {
  Error error(ErrorCode::bad_offset, "data ends past the end: got 9, expected 8", {"a.safetensors", "lm_head.weight", 72});
  EXPECT_STREQ(error.what(), "a.safetensors@72: tensor 'lm_head.weight': data ends past the end: got 9, expected 8");
  error.note("opening 'a'").note("exporting");
  EXPECT_THAT(error.what(), EndsWith("expected 8\n  while opening 'a'\n  while exporting"));
  EXPECT_EQ(error.notes().size(), 2U);
}

TEST(Error, LeavesOutWhatItDoesNotKnow) {
  EXPECT_STREQ(Error(ErrorCode::usage, "no").what(), "no");
  EXPECT_STREQ(Error(ErrorCode::usage, "no", {"f", {}, {}}).what(), "f: no");
  EXPECT_STREQ(Error(ErrorCode::usage, "no", {"f", {}, 0}).what(), "f@0: no");
  EXPECT_STREQ(Error(ErrorCode::usage, "no", {{}, "t", {}}).what(), "tensor 't': no");
}

TEST(Error, FillsOnlyTheEmptyFieldsOfItsSite) {
  Error error(ErrorCode::bad_header, "x", {{}, "inner", {}});
  error.at({"file", "outer", 5}).at({"other", "other", 6});
  EXPECT_STREQ(error.what(), "file@5: tensor 'inner': x");
}

TEST(Error, KeepsWhatIsAddedInFlight) {
  try {
    try {
      throw Error(ErrorCode::bad_header, "x");
    } catch (Error& error) {
      error.at({"file", {}, {}}).note("reading");
      throw;
    }
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "file: x\n  while reading");
  }
}

TEST(Error, DoesNotChangeItsCopies) {
  Error error(ErrorCode::bad_header, "x");
  const Error copy = error;
  error.note("later");
  EXPECT_STREQ(copy.what(), "x");
}

TEST(Error, EscapesControlBytesOfNames) {
  EXPECT_STREQ(Error(ErrorCode::bad_header, "x", {"a\nb", "t\x1b[31m\xff", {}}).what(), "a\\x0ab: tensor 't\\x1b[31m\\xff': x");
}

TEST(JoinFaults, ShowsOneFaultAlone) { EXPECT_EQ(join_faults({"a"}), "a"); }

TEST(JoinFaults, ShowsTwentyAndCountsTheRest) {
  std::vector<std::string> faults;
  for (int i = 0; i < 23; ++i) faults.push_back(fmt::format("fault {}", i));
  const std::string text = join_faults(faults);
  EXPECT_THAT(text, HasSubstr("23 faults\n  fault 0\n"));
  EXPECT_THAT(text, EndsWith("\n  fault 19\n  and 3 more"));
}

}  // namespace
}  // namespace transload
