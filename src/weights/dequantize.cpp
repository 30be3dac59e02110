// GGUF block decoders. Layouts: ggml-common.h of ggml. The float operations have the Python package's order: d times the group's
// scale, times the value, then one addition or subtraction. Only q6_k's product (25 bits) is ever rounded.
#include "weights/dequantize.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/half.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr int kBlock = 32;        // values in a block of the simple types
constexpr int kSuperBlock = 256;  // values in a block of the k types
constexpr int kGroup = 16;        // values that share a scale in q2_k, q3_k and q6_k

using Bytes = const uint8_t* __restrict;
using Floats = float* __restrict;

float half_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return f16_to_f32(bits);
}

// d, 16 bytes of nibbles: value i in the low nibble of byte i, value 16 + i in the high one.
void q4_0_block(Bytes block, Floats out) {
  const float d = half_at(block);
  Bytes nibbles = block + 2;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>((nibbles[i] & 15) - 8);
    out[i + kBlock / 2] = d * static_cast<float>((nibbles[i] >> 4) - 8);
  }
}

// d, minimum, nibbles.
void q4_1_block(Bytes block, Floats out) {
  const float d = half_at(block);
  const float minimum = half_at(block + 2);
  Bytes nibbles = block + 4;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>(nibbles[i] & 15) + minimum;
    out[i + kBlock / 2] = d * static_cast<float>(nibbles[i] >> 4) + minimum;
  }
}

// Values 0..31 of a 5-bit block: nibbles with bit i of `high_bits` as the fifth bit of value i.
std::array<int, kBlock> five_bit_values(Bytes high_bits, Bytes nibbles) {
  uint32_t high = 0;
  std::memcpy(&high, high_bits, sizeof high);
  std::array<int, kBlock> values;
  for (int i = 0; i < kBlock / 2; ++i) {
    values[i] = (nibbles[i] & 15) | static_cast<int>((high >> i & 1) << 4);
    values[i + kBlock / 2] = (nibbles[i] >> 4) | static_cast<int>((high >> (i + kBlock / 2) & 1) << 4);
  }
  return values;
}

// d, 4 bytes of fifth bits, nibbles.
void q5_0_block(Bytes block, Floats out) {
  const float d = half_at(block);
  const auto values = five_bit_values(block + 2, block + 6);
  for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(values[i] - 16);
}

// d, minimum, 4 bytes of fifth bits, nibbles.
void q5_1_block(Bytes block, Floats out) {
  const float d = half_at(block);
  const float minimum = half_at(block + 2);
  const auto values = five_bit_values(block + 4, block + 8);
  for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(values[i]) + minimum;
}

// d, 32 signed bytes.
void q8_0_block(Bytes block, Floats out) {
  const float d = half_at(block);
  Bytes values = block + 2;
  for (int i = 0; i < kBlock; ++i) out[i] = static_cast<float>(static_cast<int8_t>(values[i])) * d;
}

// 16 bytes (scale in the low nibble, minimum in the high one), 64 bytes of 2-bit values, d, dmin. Byte 32 h + i holds values
// 128 h + 32 s + i at bits 2 s.
void q2_k_block(Bytes block, Floats out) {
  Bytes scales = block;
  Bytes pairs = block + 16;
  const float d = half_at(block + 80);
  const float dmin = half_at(block + 82);
  for (int group = 0; group < kSuperBlock / kGroup; ++group) {
    const float scale = d * static_cast<float>(scales[group] & 15);
    const float minimum = dmin * static_cast<float>(scales[group] >> 4);
    Bytes in = pairs + group / 8 * 32 + group % 2 * kGroup;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < kGroup; ++i) out[group * kGroup + i] = scale * static_cast<float>(in[i] >> shift & 3) - minimum;
  }
}

// 32 bytes of third bits (bit b of byte i for value 32 b + i; 0 subtracts 4), 64 bytes of 2-bit values as in q2_k, 12 bytes of
// 6-bit scales, d. Scale g: low 4 bits in a nibble of byte g mod 8, high 2 bits in byte 8 + g mod 4.
void q3_k_block(Bytes block, Floats out) {
  Bytes third_bits = block;
  Bytes pairs = block + 32;
  Bytes scales = block + 96;
  const float d = half_at(block + 108);
  for (int group = 0; group < kSuperBlock / kGroup; ++group) {
    const int low = scales[group % 8] >> (group / 8 * 4) & 15;
    const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    Bytes in = pairs + group / 8 * 32 + group % 2 * kGroup;
    Bytes third = third_bits + group % 2 * kGroup;
    const int shift = group % 8 / 2 * 2;
    const int bit = group / 2;
    for (int i = 0; i < kGroup; ++i) {
      const int value = (in[i] >> shift & 3) - ((third[i] >> bit & 1) ^ 1) * 4;
      out[group * kGroup + i] = scale * static_cast<float>(value);
    }
  }
}

// The 12 bytes of q4_k and q5_k: eight 6-bit scales and eight 6-bit minimums, the last four of each with their upper bits above
// the first four.
struct ScalesAndMinimums {
  std::array<float, 8> scale;
  std::array<float, 8> minimum;
};
ScalesAndMinimums scales_and_minimums(Bytes packed, float d, float dmin) {
  ScalesAndMinimums result;
  for (int i = 0; i < 4; ++i) {
    result.scale[i] = d * static_cast<float>(packed[i] & 63);
    result.minimum[i] = dmin * static_cast<float>(packed[4 + i] & 63);
    result.scale[4 + i] = d * static_cast<float>((packed[8 + i] & 15) | (packed[i] >> 2 & 48));
    result.minimum[4 + i] = dmin * static_cast<float>((packed[8 + i] >> 4) | (packed[4 + i] >> 2 & 48));
  }
  return result;
}

// d, dmin, 12 bytes of scales, 128 bytes of nibbles: 32 bytes hold 32 values in their low nibbles, then 32 in their high ones.
void q4_k_block(Bytes block, Floats out) {
  const auto [scale, minimum] = scales_and_minimums(block + 4, half_at(block), half_at(block + 2));
  Bytes nibbles = block + 16;
  for (int group = 0; group < 8; ++group) {
    Bytes in = nibbles + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) out[group * 32 + i] = scale[group] * static_cast<float>(in[i] >> shift & 15) - minimum[group];
  }
}

// d, dmin, 12 bytes of scales, 32 bytes of fifth bits (bit g of byte i for value 32 g + i), 128 bytes of nibbles as in q4_k.
void q5_k_block(Bytes block, Floats out) {
  const auto [scale, minimum] = scales_and_minimums(block + 4, half_at(block), half_at(block + 2));
  Bytes fifth_bits = block + 16;
  Bytes nibbles = block + 48;
  for (int group = 0; group < 8; ++group) {
    Bytes in = nibbles + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = (in[i] >> shift & 15) | (fifth_bits[i] >> group & 1) << 4;
      out[group * 32 + i] = scale[group] * static_cast<float>(value) - minimum[group];
    }
  }
}

// 128 bytes of nibbles (64 bytes hold 64 values in their low nibbles, then 64 in their high ones), 64 bytes of upper bit pairs
// (laid out as q2_k's values), 16 signed scales, d.
void q6_k_block(Bytes block, Floats out) {
  Bytes nibbles = block;
  Bytes pairs = block + 128;
  Bytes scales = block + 192;
  const float d = half_at(block + 208);
  for (int group = 0; group < kSuperBlock / kGroup; ++group) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[group]));
    Bytes low = nibbles + group / 8 * 64 + group % 4 * kGroup;
    Bytes high = pairs + group / 8 * 32 + group % 2 * kGroup;
    const int low_shift = group % 8 / 4 * 4;
    const int high_shift = group % 8 / 2 * 2;
    for (int i = 0; i < kGroup; ++i) {
      const int value = ((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32;
      out[group * kGroup + i] = scale * static_cast<float>(value);
    }
  }
}

// Half of 2^(exponent - 127): the e2m1 values below are doubled to be integers. OCP Microscaling Formats 1.0; 255 is not NaN
// here, as in ggml.
float half_of_e8m0(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? uint32_t{0x00200000} << exponent : uint32_t{exponent - 1U} << 23;
  return std::bit_cast<float>(bits);
}

// One e8m0 exponent, 16 bytes of e2m1 nibbles.
void mxfp4_block(Bytes block, Floats out) {
  constexpr std::array<float, 16> kDoubledE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float d = half_of_e8m0(block[0]);
  Bytes nibbles = block + 1;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * kDoubledE2m1[nibbles[i] & 15];
    out[i + kBlock / 2] = d * kDoubledE2m1[nibbles[i] >> 4];
  }
}

template <void (*decode_block)(Bytes, Floats)>
void decode_blocks(DType dtype, const std::byte* blocks, uint64_t block_count, float* out) {
  const DTypeInfo& info = dtype_info(dtype);
  const auto* in = reinterpret_cast<const uint8_t*>(blocks);
  for (uint64_t block = 0; block < block_count; ++block) {
    decode_block(in + block * info.block_bytes, out + block * info.block_elements);
  }
}

}  // namespace

void dequantize(DType dtype, const std::byte* blocks, uint64_t block_count, float* out) {
  switch (dtype) {
    case DType::q4_0:
      return decode_blocks<q4_0_block>(dtype, blocks, block_count, out);
    case DType::q4_1:
      return decode_blocks<q4_1_block>(dtype, blocks, block_count, out);
    case DType::q5_0:
      return decode_blocks<q5_0_block>(dtype, blocks, block_count, out);
    case DType::q5_1:
      return decode_blocks<q5_1_block>(dtype, blocks, block_count, out);
    case DType::q8_0:
      return decode_blocks<q8_0_block>(dtype, blocks, block_count, out);
    case DType::q2_k:
      return decode_blocks<q2_k_block>(dtype, blocks, block_count, out);
    case DType::q3_k:
      return decode_blocks<q3_k_block>(dtype, blocks, block_count, out);
    case DType::q4_k:
      return decode_blocks<q4_k_block>(dtype, blocks, block_count, out);
    case DType::q5_k:
      return decode_blocks<q5_k_block>(dtype, blocks, block_count, out);
    case DType::q6_k:
      return decode_blocks<q6_k_block>(dtype, blocks, block_count, out);
    case DType::mxfp4:
      return decode_blocks<mxfp4_block>(dtype, blocks, block_count, out);
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::boolean:
      break;
  }
  throw Error(ErrorCode::internal, fmt::format("dequantize of a scalar type: got {}, expected a block type", dtype_name(dtype)));
}

}  // namespace transload
