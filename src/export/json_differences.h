// Fields in which one JSON object falls short of another, as texts for people.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"

namespace transload {

// One "field 'a.b': got x, expected y" for each field of `expected` that `got` has otherwise, or not. `path` comes before names.
std::vector<std::string> differing_fields(const Json& got, const Json& expected, const std::string& path = {});

}  // namespace transload
