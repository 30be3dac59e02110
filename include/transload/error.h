// The one error type: what went wrong, where (file, tensor, absolute offset), and the context added on the way up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace transload {

// Each code has one row in src/base/error.cpp: its name, its meaning and the exit code of the command.
enum class ErrorCode : uint8_t {
  io_failure,          // the operating system refused: disk full, permission, file limit
  usage,               // an option or argument that cannot be honoured
  destination_exists,  // the output path is not empty and overwriting was not asked for
  bad_json,            // malformed JSON, duplicate keys, nesting too deep
  bad_header,          // a container header that breaks its format
  bad_offset,          // data outside its file, overlapping or leaving holes
  size_overflow,       // shape x dtype does not fit in 64 bits
  duplicate_name,      // one tensor twice, in a file or over shards
  file_missing,        // a file that the checkpoint names or needs is not there
  tensor_missing,
  tensor_unused,
  shape_mismatch,
  dtype_mismatch,
  config_missing,      // a needed field is absent
  config_invalid,      // a field of the wrong type or with an impossible value
  config_unsupported,  // a well-formed field this tool does not implement
  arch_unknown,        // no family for this model_type or architecture
  dtype_unsupported,   // a tensor type this tool cannot decode
  numeric_fault,       // NaN or overflow where --strict asks for none
  op_unsupported,
  format_limit,       // the target format cannot carry it
  quant_unsupported,  // a tensor that cannot be quantised in the layout asked for
  shard_indivisible,  // a model that cannot be split over so many ranks
  verify_mismatch,
  graph_invalid,  // our own graph breaks a rule: a bug
  internal,       // a bug
};
inline constexpr int kErrorCodeCount = static_cast<int>(ErrorCode::internal) + 1;

std::string_view error_code_name(ErrorCode code);
// Exit code of the command for an error: 1 checkpoint, 2 usage, 3 verification, 4 unsupported, 5 operating system, 70 bug.
int exit_code(ErrorCode code);

// Where a fault is. Offsets are absolute from the start of the file.
struct ErrorSite {
  std::string file;
  std::string tensor;
  std::optional<uint64_t> offset;
};

// Rendering: `<file>@<offset>: tensor '<name>': <what>` and one `  while <note>` line for each note, innermost first.
class Error final : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string what, ErrorSite site = {});

  ErrorCode code() const noexcept;
  const ErrorSite& site() const noexcept;
  const std::vector<std::string>& notes() const noexcept;
  const char* what() const noexcept override;  // the whole rendering

  // Fills only the fields of the site that are still empty: the innermost thrower knows best.
  Error& at(const ErrorSite& site);
  Error& note(std::string text);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Joins faults of one kind into one message: the first 20, one a line, then how many more there are.
std::string join_faults(const std::vector<std::string>& faults);

}  // namespace transload
