// Checked unsigned arithmetic for every number that comes from a file.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "transload/error.h"

namespace transload {

// Nothing when the result does not fit in 64 bits.
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The same, throwing size_overflow: `what` names the quantity, e.g. "tensor size".
inline uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what) {
  if (const auto sum = checked_add(a, b)) return *sum;
  throw Error(ErrorCode::size_overflow, fmt::format("{}: got {} + {}, expected less than 2^64", what, a, b));
}

inline uint64_t checked_mul(uint64_t a, uint64_t b, std::string_view what) {
  if (const auto product = checked_mul(a, b)) return *product;
  throw Error(ErrorCode::size_overflow, fmt::format("{}: got {} x {}, expected less than 2^64", what, a, b));
}

}  // namespace transload
