// Reproducible pseudo-random weights: a pure function of (seed, index), so any range can be made on its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace transload {

// The output function of SplitMix64: every bit of the input changes about half of the output bits.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// About normal: the sum of the four 16-bit parts of one hash, centred and scaled; reaches 3.46 standard deviations. Integer up to
// one multiplication and one addition, so every machine gives the same bits.
inline void random_values(uint64_t seed, float stddev, float mean, uint64_t first, size_t count, float* out) {
  constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
  constexpr int32_t kCentre = 2 * 0xFFFF;
  // A sum of four uniform 16-bit integers has variance 4 (2^32 - 1) / 12.
  constexpr double kSumDeviation = 37837.22723720648;
  const uint64_t base = mix64(seed + kIncrement);
  const float scale = static_cast<float>(static_cast<double>(stddev) / kSumDeviation);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = mix64(base + (first + i) * kIncrement);
    const auto sum = static_cast<int32_t>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48));
    out[i] = static_cast<float>(sum - kCentre) * scale + mean;
  }
}

}  // namespace transload
