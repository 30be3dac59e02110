// Names that a TensorRT-LLM checkpoint gives its files and the scales of its baked weights.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace transload {

// Behind the name of a linear layer, whose weight ends in ".weight".
inline constexpr const char* kScalesSuffix = ".per_channel_scale";

inline std::string rank_file_name(uint32_t rank) { return fmt::format("rank{}.safetensors", rank); }

}  // namespace transload
