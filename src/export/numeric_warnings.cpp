// Pairs the counts of an execution with the tensors that were planned.
#include "export/numeric_warnings.h"

#include <fmt/format.h>

#include "transload/error.h"

namespace transload {

std::string warning_text(const TensorWarning& warning) {
  std::string from;
  for (const std::string& source : warning.sources) from += (from.empty() ? "'" : ", '") + source + "'";
  return fmt::format("{}tensor '{}'{}: {} values overflow f16, {} NaN", warning.file.empty() ? "" : warning.file + ": ",
                     warning.tensor, from.empty() ? "" : " (from " + from + ")", warning.overflow_count, warning.nan_count);
}

std::vector<TensorWarning> numeric_warnings(const Plan& plan, const std::vector<TensorResult>& results) {
  std::vector<TensorWarning> warnings;
  size_t index = 0;
  for (const PlannedFile& file : plan.files) {
    for (const PlannedTensor& tensor : file.tensors) {
      for (size_t parts = tensor.scales ? 2 : 1; parts > 0; --parts) {
        const TensorResult& result = results[index++];
        if (result.overflow_count == 0 && result.nan_count == 0) continue;
        warnings.push_back({result.name, source_tensor_names(tensor.recipe), result.overflow_count, result.nan_count});
      }
    }
  }
  return warnings;
}

void refuse_numeric_faults(const std::vector<TensorWarning>& warnings) {
  std::vector<std::string> faults;
  for (const TensorWarning& warning : warnings) faults.push_back(warning_text(warning));
  if (!faults.empty()) {
    throw Error(ErrorCode::numeric_fault,
                "weights with values that a runtime cannot use: expected finite values, got " + join_faults(faults));
  }
}

}  // namespace transload
