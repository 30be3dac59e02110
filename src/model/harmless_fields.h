// Fields of a Hugging Face config that never change what a decoder computes.
#pragma once

#include <string_view>

#include "io/json.h"

namespace transload {

// True when `field` with this value can be passed over: bookkeeping, training and sampling settings, and switches in the position
// in which they do nothing.
bool never_changes_maths(std::string_view field, const Json& value);

}  // namespace transload
