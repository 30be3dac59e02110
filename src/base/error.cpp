// The table of error codes, and how an Error is rendered.
#include "transload/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "base/printable.h"

namespace transload {
namespace {

struct ErrorCodeRow {
  ErrorCode code;
  std::string_view name;
  std::string_view meaning;
  int exit_code;
};

constexpr std::array<ErrorCodeRow, kErrorCodeCount> kErrorCodes{{
    {ErrorCode::io_failure, "io_failure", "the operating system refused an operation on a file", 5},
    {ErrorCode::usage, "usage", "an option or argument cannot be honoured", 2},
    {ErrorCode::destination_exists, "destination_exists", "the output path is not empty", 2},
    {ErrorCode::bad_json, "bad_json", "malformed JSON", 1},
    {ErrorCode::bad_header, "bad_header", "a container header breaks its format", 1},
    {ErrorCode::bad_offset, "bad_offset", "tensor data outside its file, overlapping or with holes", 1},
    {ErrorCode::size_overflow, "size_overflow", "a size does not fit in 64 bits", 1},
    {ErrorCode::duplicate_name, "duplicate_name", "one tensor is stored twice", 1},
    {ErrorCode::file_missing, "file_missing", "a needed file is not there", 1},
    {ErrorCode::tensor_missing, "tensor_missing", "a needed tensor is not there", 1},
    {ErrorCode::tensor_unused, "tensor_unused", "a stored tensor that the model does not read", 1},
    {ErrorCode::shape_mismatch, "shape_mismatch", "a tensor of another shape than expected", 1},
    {ErrorCode::dtype_mismatch, "dtype_mismatch", "a tensor of another type than expected", 1},
    {ErrorCode::config_missing, "config_missing", "a needed config field is absent", 1},
    {ErrorCode::config_invalid, "config_invalid", "a config field of the wrong type or value", 1},
    {ErrorCode::config_unsupported, "config_unsupported", "a config field that is not supported", 4},
    {ErrorCode::arch_unknown, "arch_unknown", "no model family for this architecture", 4},
    {ErrorCode::dtype_unsupported, "dtype_unsupported", "a tensor type that cannot be decoded", 4},
    {ErrorCode::numeric_fault, "numeric_fault", "NaN or overflow in weights", 1},
    {ErrorCode::op_unsupported, "op_unsupported", "the target has no such operation", 4},
    {ErrorCode::format_limit, "format_limit", "the target format cannot carry it", 4},
    {ErrorCode::quant_unsupported, "quant_unsupported", "a tensor does not fit the quantised layout", 4},
    {ErrorCode::shard_indivisible, "shard_indivisible", "the model cannot be split over so many ranks", 4},
    {ErrorCode::verify_mismatch, "verify_mismatch", "verification failed", 3},
    {ErrorCode::graph_invalid, "graph_invalid", "our own graph breaks a rule", 70},
    {ErrorCode::internal, "internal", "a bug in transload", 70},
}};

constexpr bool rows_follow_enumerators() {
  for (int i = 0; i < kErrorCodeCount; ++i) {
    const ErrorCodeRow& row = kErrorCodes[static_cast<size_t>(i)];
    if (static_cast<int>(row.code) != i || row.name.empty() || row.meaning.empty()) return false;
  }
  return true;
}
static_assert(rows_follow_enumerators(), "each ErrorCode needs one row, in the order of the enumerators");

const ErrorCodeRow& row_of(ErrorCode code) { return kErrorCodes.at(static_cast<size_t>(code)); }

}  // namespace

std::string_view error_code_name(ErrorCode code) { return row_of(code).name; }

int exit_code(ErrorCode code) { return row_of(code).exit_code; }

struct Error::State {
  ErrorCode code;
  std::string what;
  ErrorSite site;
  std::vector<std::string> notes;
  std::string rendering;

  void render() {
    rendering.clear();
    if (!site.file.empty()) rendering += printable(site.file, 1000);
    if (site.offset) rendering += fmt::format("@{}", *site.offset);
    if (!rendering.empty()) rendering += ": ";
    if (!site.tensor.empty()) rendering += fmt::format("tensor '{}': ", printable(site.tensor));
    rendering += what;
    for (const std::string& note : notes) rendering += fmt::format("\n  while {}", note);
  }
};

static_assert(std::is_nothrow_copy_constructible_v<Error>);

Error::Error(ErrorCode code, std::string what, ErrorSite site)
    : std::runtime_error(what), state_(std::make_shared<State>(State{code, std::move(what), std::move(site), {}, {}})) {
  state_->render();
}

ErrorCode Error::code() const noexcept { return state_->code; }
const ErrorSite& Error::site() const noexcept { return state_->site; }
const std::vector<std::string>& Error::notes() const noexcept { return state_->notes; }
const char* Error::what() const noexcept { return state_->rendering.c_str(); }

// Both setters replace the state rather than change it: copies of an error share it, perhaps over threads.
Error& Error::at(const ErrorSite& site) {
  auto state = std::make_shared<State>(*state_);
  if (state->site.file.empty()) state->site.file = site.file;
  if (state->site.tensor.empty()) state->site.tensor = site.tensor;
  if (!state->site.offset) state->site.offset = site.offset;
  state->render();
  state_ = std::move(state);
  return *this;
}

Error& Error::note(std::string text) {
  auto state = std::make_shared<State>(*state_);
  state->notes.push_back(std::move(text));
  state->render();
  state_ = std::move(state);
  return *this;
}

std::string join_faults(const std::vector<std::string>& faults) {
  constexpr size_t kShown = 20;
  if (faults.size() == 1) return faults.front();
  const size_t shown = std::min(faults.size(), kShown);
  std::string text = fmt::format("{} faults", faults.size());
  for (size_t i = 0; i < shown; ++i) text += fmt::format("\n  {}", faults[i]);
  if (faults.size() > shown) text += fmt::format("\n  and {} more", faults.size() - shown);
  return text;
}

}  // namespace transload
