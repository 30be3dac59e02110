// Decodes stored rows into vectors of f32 in registers, for each instruction set. Included once per Highway target, hence the
// guard. Block layouts are those of weights/dequantize.cpp; scale and minimum are applied with one rounding.
#if defined(TRANSLOAD_RUNTIME_ROW_DECODER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANSLOAD_RUNTIME_ROW_DECODER_INL_H
#undef TRANSLOAD_RUNTIME_ROW_DECODER_INL_H
#else
#define TRANSLOAD_RUNTIME_ROW_DECODER_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/dot_kernels.h"
#include "transload/dtype.h"
#include "weights/convert.h"

HWY_BEFORE_NAMESPACE();
namespace transload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kMostLanes == 16);  // the smallest group of values that share a scale
using F32 = hn::CappedTag<float, kMostLanes>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using U8 = hn::Rebind<uint8_t, F32>;
using I8 = hn::Rebind<int8_t, F32>;
using VF32 = hn::Vec<F32>;
using VU16 = hn::Vec<U16>;
using VU8 = hn::Vec<U8>;

HWY_INLINE size_t lanes() { return hn::Lanes(F32()); }

HWY_INLINE VF32 widen_bf16(VU16 halves) { return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), halves))); }

HWY_INLINE VF32 widen_f16(VU16 halves) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, F32> d;
  return hn::PromoteTo(F32(), hn::BitCast(d, halves));
#else
  // Highway 1.0.3 loses infinities here. The bits moved to their places are 2^-112 times the value, exactly, subnormals too.
  const U32 d;
  const auto bits = hn::PromoteTo(d, halves);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
  const auto scaled = hn::Mul(hn::BitCast(F32(), hn::ShiftLeft<13>(magnitude)), hn::Set(F32(), 0x1p112F));
  const auto is_special = hn::Gt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x7BFF));
  const auto infinity = hn::IfThenElseZero(hn::RebindMask(d, is_special), hn::Set(d, 0x7F800000));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  return hn::BitCast(F32(), hn::Or(hn::Or(hn::BitCast(d, scaled), infinity), sign));
#endif
}

// The f16 at `bytes`, in every lane.
HWY_INLINE VF32 half_at(const uint8_t* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof half);
  return widen_f16(hn::Set(U16(), half));
}

HWY_INLINE VU8 load_bytes(const uint8_t* bytes) { return hn::LoadU(U8(), bytes); }
HWY_INLINE VU8 low_nibbles(VU8 bytes) { return hn::And(bytes, hn::Set(U8(), 15)); }
HWY_INLINE VU8 high_nibbles(VU8 bytes) { return hn::ShiftRight<4>(bytes); }
HWY_INLINE VF32 to_floats(VU8 values) { return hn::ConvertTo(F32(), hn::PromoteTo(I32(), values)); }
HWY_INLINE VF32 to_floats(hn::Vec<I8> values) { return hn::ConvertTo(F32(), hn::PromoteTo(I32(), values)); }
// values - zero
HWY_INLINE VF32 centred_floats(VU8 values, uint8_t zero) {
  return to_floats(hn::BitCast(I8(), hn::Sub(values, hn::Set(U8(), zero))));
}

// A sink takes vectors of consecutive values: sink.take<kSlot>(values, index), kSlot below 4 spreading them over accumulators,
// and sink.take_tail(values, index, count) for the last, with zeros behind.

struct PlainF32 {
  using Stored = float;
  static HWY_INLINE VF32 load(const float* in) { return hn::LoadU(F32(), in); }
};
struct PlainF16 {
  using Stored = uint16_t;
  static HWY_INLINE VF32 load(const uint16_t* in) { return widen_f16(hn::LoadU(U16(), in)); }
};
struct PlainBf16 {
  using Stored = uint16_t;
  static HWY_INLINE VF32 load(const uint16_t* in) { return widen_bf16(hn::LoadU(U16(), in)); }
};

// `index` is that of the first value, for the sink.
template <class Plain, class Sink>
HWY_INLINE void decode_plain(const void* row, size_t count, size_t index, Sink& sink) {
  using Stored = typename Plain::Stored;
  const Stored* in = static_cast<const Stored*>(row);
  const size_t n = lanes();
  size_t i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    sink.template take<0>(Plain::load(in + i), index + i);
    sink.template take<1>(Plain::load(in + i + n), index + i + n);
    sink.template take<2>(Plain::load(in + i + 2 * n), index + i + 2 * n);
    sink.template take<3>(Plain::load(in + i + 3 * n), index + i + 3 * n);
  }
  for (; i + n <= count; i += n) sink.template take<0>(Plain::load(in + i), index + i);
  if (i < count) {
    HWY_ALIGN Stored tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(tail, in + i, (count - i) * sizeof(Stored));
    sink.take_tail(Plain::load(tail), index + i, count - i);
  }
}

// Block decoders: the values of one block, the first with number `index`. Two halves of 16 use slots of their own.

struct Q4_0 {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    const VF32 d = half_at(block);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VU8 bytes = load_bytes(block + 2 + i);
      sink.template take<0>(hn::Mul(d, centred_floats(low_nibbles(bytes), 8)), index + i);
      sink.template take<1>(hn::Mul(d, centred_floats(high_nibbles(bytes), 8)), index + 16 + i);
    }
  }
};

struct Q4_1 {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    const VF32 d = half_at(block);
    const VF32 minimum = half_at(block + 2);
    for (size_t i = 0; i < 16; i += lanes()) {
      const VU8 bytes = load_bytes(block + 4 + i);
      sink.template take<0>(hn::MulAdd(d, to_floats(low_nibbles(bytes)), minimum), index + i);
      sink.template take<1>(hn::MulAdd(d, to_floats(high_nibbles(bytes)), minimum), index + 16 + i);
    }
  }
};

// 16 where bit first + lane of `bits` is set.
HWY_INLINE hn::Vec<I32> fifth_bits(uint32_t bits, size_t first) {
  alignas(64) static constexpr int32_t kBit[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                                   1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  const I32 d;
  const auto is_set = hn::TestBit(hn::Set(d, static_cast<int32_t>(bits)), hn::LoadU(d, kBit + first));
  return hn::IfThenElseZero(is_set, hn::Set(d, 16));
}

// Five-bit values 0..31: nibbles, and a word of fifth bits at `high`.
template <class Use>
HWY_INLINE void five_bit_values(const uint8_t* high, const uint8_t* nibbles, const Use& use) {
  uint32_t bits = 0;
  std::memcpy(&bits, high, sizeof bits);
  for (size_t i = 0; i < 16; i += lanes()) {
    const VU8 bytes = load_bytes(nibbles + i);
    const auto first = hn::Or(hn::PromoteTo(I32(), low_nibbles(bytes)), fifth_bits(bits & 0xFFFF, i));
    const auto second = hn::Or(hn::PromoteTo(I32(), high_nibbles(bytes)), fifth_bits(bits >> 16, i));
    use(first, second, i);
  }
}

struct Q5_0 {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    const VF32 d = half_at(block);
    const auto zero = hn::Set(I32(), 16);
    five_bit_values(block + 2, block + 6, [&](hn::Vec<I32> first, hn::Vec<I32> second, size_t i) HWY_ATTR {
      sink.template take<0>(hn::Mul(d, hn::ConvertTo(F32(), hn::Sub(first, zero))), index + i);
      sink.template take<1>(hn::Mul(d, hn::ConvertTo(F32(), hn::Sub(second, zero))), index + 16 + i);
    });
  }
};

struct Q5_1 {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    const VF32 d = half_at(block);
    const VF32 minimum = half_at(block + 2);
    five_bit_values(block + 4, block + 8, [&](hn::Vec<I32> first, hn::Vec<I32> second, size_t i) HWY_ATTR {
      sink.template take<0>(hn::MulAdd(d, hn::ConvertTo(F32(), first), minimum), index + i);
      sink.template take<1>(hn::MulAdd(d, hn::ConvertTo(F32(), second), minimum), index + 16 + i);
    });
  }
};

struct Q8_0 {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    const VF32 d = half_at(block);
    for (size_t i = 0; i < 16; i += lanes()) {
      sink.template take<0>(hn::Mul(d, to_floats(hn::BitCast(I8(), load_bytes(block + 2 + i)))), index + i);
      sink.template take<1>(hn::Mul(d, to_floats(hn::BitCast(I8(), load_bytes(block + 18 + i)))), index + 16 + i);
    }
  }
};

// out[i] = factor * packed[i] for 8 or 16 small integers.
template <class DBytes, class Packed>
HWY_INLINE void scale_bytes(DBytes d, const Packed* packed, size_t count, VF32 factor, float* out) {
  for (size_t i = 0; i < count; i += lanes()) {
    hn::StoreU(hn::Mul(factor, to_floats(hn::LoadU(d, packed + i))), F32(), out + i);
  }
}

// Scales of q4_k and q5_k: eight 6-bit scales and eight 6-bit minimums in 12 bytes; the minimums come out negative.
struct GroupScales {
  HWY_ALIGN float scale[16];
  HWY_ALIGN float minus_minimum[16];
};
HWY_INLINE void unpack_scales(const uint8_t* block, GroupScales& scales) {
  uint32_t words[3];
  std::memcpy(words, block + 4, sizeof words);
  // Little-endian words: bytes 0..7 are scales, 8..15 minimums; read past 8 by a vector of 16 lanes, hence the padding.
  uint32_t unpacked[6] = {words[0] & 0x3F3F3F3F,
                          (words[2] & 0x0F0F0F0F) | (words[0] >> 2 & 0x30303030),
                          words[1] & 0x3F3F3F3F,
                          (words[2] >> 4 & 0x0F0F0F0F) | (words[1] >> 2 & 0x30303030),
                          0,
                          0};
  uint8_t bytes[sizeof unpacked];
  std::memcpy(bytes, unpacked, sizeof bytes);
  scale_bytes(U8(), bytes, 8, half_at(block), scales.scale);
  scale_bytes(U8(), bytes + 8, 8, hn::Neg(half_at(block + 2)), scales.minus_minimum);
}

struct Q4K {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    GroupScales scales;
    unpack_scales(block, scales);
    for (size_t pair = 0; pair < 4; ++pair) {
      const VF32 low_scale = hn::Set(F32(), scales.scale[2 * pair]);
      const VF32 low_minimum = hn::Set(F32(), scales.minus_minimum[2 * pair]);
      const VF32 high_scale = hn::Set(F32(), scales.scale[2 * pair + 1]);
      const VF32 high_minimum = hn::Set(F32(), scales.minus_minimum[2 * pair + 1]);
      const uint8_t* in = block + 16 + 32 * pair;
      const size_t at = index + 64 * pair;
      for (size_t i = 0; i < 16; i += lanes()) {
        const VU8 bytes = load_bytes(in + i);
        const VU8 more = load_bytes(in + 16 + i);
        sink.template take<0>(hn::MulAdd(low_scale, to_floats(low_nibbles(bytes)), low_minimum), at + i);
        sink.template take<1>(hn::MulAdd(low_scale, to_floats(low_nibbles(more)), low_minimum), at + 16 + i);
        sink.template take<2>(hn::MulAdd(high_scale, to_floats(high_nibbles(bytes)), high_minimum), at + 32 + i);
        sink.template take<3>(hn::MulAdd(high_scale, to_floats(high_nibbles(more)), high_minimum), at + 48 + i);
      }
    }
  }
};

// 16 where `bit` is set.
HWY_INLINE VU8 fifth_bit(VU8 bytes, size_t bit) {
  const U8 d;
  return hn::IfThenElseZero(hn::TestBit(bytes, hn::Set(d, static_cast<uint8_t>(1U << bit))), hn::Set(d, 16));
}

struct Q5K {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    GroupScales scales;
    unpack_scales(block, scales);
    for (size_t pair = 0; pair < 4; ++pair) {
      const size_t group = 2 * pair;
      const VF32 low_scale = hn::Set(F32(), scales.scale[group]);
      const VF32 low_minimum = hn::Set(F32(), scales.minus_minimum[group]);
      const VF32 high_scale = hn::Set(F32(), scales.scale[group + 1]);
      const VF32 high_minimum = hn::Set(F32(), scales.minus_minimum[group + 1]);
      const uint8_t* in = block + 48 + 32 * pair;
      const size_t at = index + 64 * pair;
      for (size_t i = 0; i < 16; i += lanes()) {
        const VU8 bytes = load_bytes(in + i);
        const VU8 more = load_bytes(in + 16 + i);
        const VU8 high = load_bytes(block + 16 + i);
        const VU8 more_high = load_bytes(block + 32 + i);
        const VU8 first = hn::Or(low_nibbles(bytes), fifth_bit(high, group));
        const VU8 second = hn::Or(low_nibbles(more), fifth_bit(more_high, group));
        const VU8 third = hn::Or(high_nibbles(bytes), fifth_bit(high, group + 1));
        const VU8 fourth = hn::Or(high_nibbles(more), fifth_bit(more_high, group + 1));
        sink.template take<0>(hn::MulAdd(low_scale, to_floats(first), low_minimum), at + i);
        sink.template take<1>(hn::MulAdd(low_scale, to_floats(second), low_minimum), at + 16 + i);
        sink.template take<2>(hn::MulAdd(high_scale, to_floats(third), high_minimum), at + 32 + i);
        sink.template take<3>(hn::MulAdd(high_scale, to_floats(fourth), high_minimum), at + 48 + i);
      }
    }
  }
};

struct Q6K {
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* block, size_t index, Sink& sink) {
    HWY_ALIGN float scales[16];
    scale_bytes(I8(), reinterpret_cast<const int8_t*>(block + 192), 16, half_at(block + 208), scales);
    const VU8 mask = hn::Set(U8(), 0x30);
    // 16 bytes of pairs, with two times 16 bytes of nibbles, hold four groups.
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      const size_t half = quarter / 2;
      const size_t odd = quarter % 2;
      const uint8_t* nibbles = block + 64 * half + 16 * odd;
      const uint8_t* pairs = block + 128 + 32 * half + 16 * odd;
      const float* scale = scales + 8 * half + odd;
      const size_t at = index + 128 * half + 16 * odd;
      for (size_t i = 0; i < 16; i += lanes()) {
        const VU8 bytes = load_bytes(nibbles + i);
        const VU8 more = load_bytes(nibbles + 32 + i);
        const VU8 high = load_bytes(pairs + i);
        const VU8 first = hn::Or(low_nibbles(bytes), hn::And(hn::ShiftLeft<4>(high), mask));
        const VU8 second = hn::Or(low_nibbles(more), hn::And(hn::ShiftLeft<2>(high), mask));
        const VU8 third = hn::Or(high_nibbles(bytes), hn::And(high, mask));
        const VU8 fourth = hn::Or(high_nibbles(more), hn::And(hn::ShiftRight<2>(high), mask));
        sink.template take<0>(hn::Mul(hn::Set(F32(), scale[0]), centred_floats(first, 32)), at + i);
        sink.template take<1>(hn::Mul(hn::Set(F32(), scale[2]), centred_floats(second, 32)), at + 32 + i);
        sink.template take<2>(hn::Mul(hn::Set(F32(), scale[4]), centred_floats(third, 32)), at + 64 + i);
        sink.template take<3>(hn::Mul(hn::Set(F32(), scale[6]), centred_floats(fourth, 32)), at + 96 + i);
      }
    }
  }
};

template <class Block, class Sink>
HWY_INLINE void decode_blocks(DType dtype, const std::byte* in, size_t count, Sink& sink) {
  const DTypeInfo& info = dtype_info(dtype);
  const auto* block = reinterpret_cast<const uint8_t*>(in);
  for (size_t i = 0; i < count; i += info.block_elements, block += info.block_bytes) Block::decode(block, i, sink);
}

// Types without a decoder here: through fp32 in the L1 cache.
template <class Sink>
HWY_INLINE void decode_converted(DType dtype, const std::byte* in, size_t count, Sink& sink) {
  constexpr size_t kChunk = 1024;  // whole blocks
  const DTypeInfo& info = dtype_info(dtype);
  HWY_ALIGN float values[kChunk];
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t chunk = std::min(kChunk, count - done);
    convert_to_f32(dtype, in + done / info.block_elements * info.block_bytes, chunk, values);
    decode_plain<PlainF32>(values, chunk, done, sink);
  }
}

// `count` values of a row; whole blocks for block types.
template <class Sink>
HWY_INLINE void decode_values(DType dtype, const std::byte* in, size_t count, Sink& sink) {
  switch (dtype) {
    case DType::f32:
      return decode_plain<PlainF32>(in, count, 0, sink);
    case DType::f16:
      return decode_plain<PlainF16>(in, count, 0, sink);
    case DType::bf16:
      return decode_plain<PlainBf16>(in, count, 0, sink);
    case DType::q4_0:
      return decode_blocks<Q4_0>(dtype, in, count, sink);
    case DType::q4_1:
      return decode_blocks<Q4_1>(dtype, in, count, sink);
    case DType::q5_0:
      return decode_blocks<Q5_0>(dtype, in, count, sink);
    case DType::q5_1:
      return decode_blocks<Q5_1>(dtype, in, count, sink);
    case DType::q8_0:
      return decode_blocks<Q8_0>(dtype, in, count, sink);
    case DType::q4_k:
      return decode_blocks<Q4K>(dtype, in, count, sink);
    case DType::q5_k:
      return decode_blocks<Q5K>(dtype, in, count, sink);
    case DType::q6_k:
      return decode_blocks<Q6K>(dtype, in, count, sink);
    case DType::f64:
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
    case DType::q2_k:
    case DType::q3_k:
    case DType::mxfp4:
      return decode_converted(dtype, in, count, sink);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace transload
HWY_AFTER_NAMESPACE();

#endif  // TRANSLOAD_RUNTIME_ROW_DECODER_INL_H
