// Values of written tensors that no runtime can use: collected, and refused where the caller is strict.
#pragma once

#include <vector>

#include "transload/tensor_warning.h"
#include "weights/executor.h"
#include "weights/plan.h"

namespace transload {

// `results` as execute() gives them for `plan`.
std::vector<TensorWarning> numeric_warnings(const Plan& plan, const std::vector<TensorResult>& results);

// Throws numeric_fault when there are any.
void refuse_numeric_faults(const std::vector<TensorWarning>& warnings);

}  // namespace transload
