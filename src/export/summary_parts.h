// Parts that the summaries of several commands have in common, as JSON.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "transload/tensor_warning.h"

namespace transload {

Json strings_json(const std::vector<std::string>& strings);
Json numeric_warnings_json(const std::vector<TensorWarning>& warnings);

}  // namespace transload
