// The kernels, compiled once for each instruction set and chosen at run time (Highway). Rounding is done in integer operations:
// Highway 1.0.3 truncates f32 to bf16 everywhere and loses infinities and NaNs in half conversions below AVX2.
#include "weights/kernels.h"

#include <algorithm>
#include <cstring>

#include "transload/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weights/kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace transload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16Half = hn::Rebind<uint16_t, F32>;  // as many lanes as F32 has
using VI32 = hn::Vec<I32>;

// Bits of a float in a lane, as signed integers: magnitudes compare as they should.
constexpr int32_t kMagnitude32 = 0x7FFFFFFF;
constexpr int32_t kInfinity32 = 0x7F800000;

HWY_INLINE VI32 load_u16(const uint16_t* in) { return hn::PromoteTo(I32(), hn::LoadU(U16Half(), in)); }
HWY_INLINE VI32 load_f32(const float* in) { return hn::BitCast(I32(), hn::LoadU(F32(), in)); }
HWY_INLINE void store_u16(VI32 bits, uint16_t* out) { hn::StoreU(hn::DemoteTo(U16Half(), bits), U16Half(), out); }
HWY_INLINE void store_f32(VI32 bits, float* out) { hn::StoreU(hn::BitCast(F32(), bits), F32(), out); }

HWY_INLINE VI32 and_bits(VI32 bits, int32_t mask) { return hn::And(bits, hn::Set(I32(), mask)); }
// -1 in lanes where a > b: what counters subtract.
HWY_INLINE VI32 greater(VI32 a, int32_t b) { return hn::VecFromMask(I32(), hn::Gt(a, hn::Set(I32(), b))); }

HWY_INLINE VI32 widen_bf16(VI32 half) {
  const VI32 bits = hn::ShiftLeft<16>(half);
  const VI32 is_nan = greater(and_bits(bits, kMagnitude32), kInfinity32);
  return hn::Or(bits, and_bits(is_nan, 0x00400000));
}

HWY_INLINE VI32 widen_f16(VI32 half) {
  const I32 d;
  const F32 df;
  const VI32 magnitude = hn::ShiftLeft<13>(and_bits(half, 0x7FFF));
  const VI32 sign = hn::ShiftLeft<16>(and_bits(half, 0x8000));
  constexpr int32_t kInfinityShifted = 0x7C00 << 13;
  constexpr int32_t kRebias = 112 << 23;  // exponent bias 127 - 15
  const VI32 is_special = greater(magnitude, kInfinityShifted - 1);
  const VI32 is_nan = greater(magnitude, kInfinityShifted);
  VI32 normal = hn::Add(magnitude, hn::Set(d, kRebias));
  normal = hn::Add(normal, and_bits(is_special, kRebias));
  normal = hn::Or(normal, and_bits(is_nan, 0x00400000));
  // A subnormal m * 2^-24 is the fraction of 2^-14 * (1 + m / 1024); the subtraction is exact.
  const VI32 one = hn::Set(d, 113 << 23);
  const VI32 fraction = hn::BitCast(d, hn::Sub(hn::BitCast(df, hn::Or(magnitude, one)), hn::BitCast(df, one)));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(d, 1 << 23));
  return hn::Or(sign, hn::IfThenElse(is_subnormal, fraction, normal));
}

// Lane counters of one call; a call converts fewer than 2^31 values a lane.
struct Counters {
  VI32 at_least_overflow;
  VI32 at_least_infinity;
  VI32 nan;
};
HWY_INLINE Counters no_counts() { return {hn::Zero(I32()), hn::Zero(I32()), hn::Zero(I32())}; }

HWY_INLINE VI32 narrow_f16(VI32 bits, Counters& counters) {
  const I32 d;
  const F32 df;
  const VI32 magnitude = and_bits(bits, kMagnitude32);
  const VI32 sign = and_bits(hn::ShiftRight<16>(bits), 0x8000);
  constexpr int32_t kOverflow = 0x477FF000;  // 65,520: from here on the nearest f16 is infinity
  const VI32 overflows = greater(magnitude, kOverflow - 1);
  const VI32 is_nan = greater(magnitude, kInfinity32);
  counters.at_least_overflow = hn::Sub(counters.at_least_overflow, overflows);
  counters.at_least_infinity = hn::Sub(counters.at_least_infinity, greater(magnitude, kInfinity32 - 1));
  counters.nan = hn::Sub(counters.nan, is_nan);

  const VI32 odd = and_bits(hn::ShiftRight<13>(magnitude), 1);
  const VI32 rounded = hn::Add(hn::Add(magnitude, hn::Set(d, 0xFFF - (112 << 23))), odd);
  VI32 half = hn::Min(hn::ShiftRight<13>(rounded), hn::Set(d, 0x7C00));
  // Adding 0.5 leaves the value in units of 2^-24, rounded to nearest even by the addition itself.
  const VI32 half_one = hn::Set(d, 126 << 23);
  const VI32 subnormal = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, half_one))), half_one);
  half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 113 << 23)), subnormal, half);
  const VI32 nan_half = hn::Or(and_bits(hn::ShiftRight<13>(magnitude), 0x3FF), hn::Set(d, 0x7E00));
  half = hn::IfThenElse(hn::MaskFromVec(is_nan), nan_half, half);
  return hn::Or(half, sign);
}

HWY_INLINE VI32 narrow_bf16(VI32 bits, Counters& counters) {
  const I32 d;
  const VI32 is_nan = greater(and_bits(bits, kMagnitude32), kInfinity32);
  counters.nan = hn::Sub(counters.nan, is_nan);
  const VI32 upper = and_bits(hn::ShiftRight<16>(bits), 0xFFFF);
  const VI32 rounded = hn::Add(bits, hn::Add(and_bits(upper, 1), hn::Set(d, 0x7FFF)));
  const VI32 half = and_bits(hn::ShiftRight<16>(rounded), 0xFFFF);
  return hn::IfThenElse(hn::MaskFromVec(is_nan), hn::Or(upper, hn::Set(d, 0x40)), half);
}

// Sum over lanes, in 64 bits.
HWY_INLINE uint64_t total(VI32 counter) {
  HWY_ALIGN uint32_t lanes[HWY_MAX_BYTES / sizeof(uint32_t)];
  hn::Store(hn::BitCast(U32(), counter), U32(), lanes);
  uint64_t sum = 0;
  for (size_t i = 0; i < hn::Lanes(U32()); ++i) sum += lanes[i];
  return sum;
}

HWY_INLINE NumericCounts totals(const Counters& counters) {
  return {total(counters.at_least_overflow) - total(counters.at_least_infinity), total(counters.nan)};
}

HWY_INLINE VI32 load(const uint16_t* in) { return load_u16(in); }
HWY_INLINE VI32 load(const float* in) { return load_f32(in); }
HWY_INLINE void store(VI32 bits, uint16_t* out) { store_u16(bits, out); }
HWY_INLINE void store(VI32 bits, float* out) { store_f32(bits, out); }

// out[i] = convert(in[i]); the tail goes through a zero-padded vector, and zeros count as nothing.
template <class In, class Out, class Convert>
HWY_INLINE void convert_all(const In* in, Out* out, size_t count, const Convert& convert) {
  const size_t lanes = hn::Lanes(I32());
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const VI32 first = convert(load(in + i));
    const VI32 second = convert(load(in + i + lanes));
    store(first, out + i);
    store(second, out + i + lanes);
  }
  for (; i < count; i += lanes) {
    const size_t left = std::min(lanes, count - i);
    HWY_ALIGN In tail[HWY_MAX_BYTES / sizeof(float)] = {};
    HWY_ALIGN Out result[HWY_MAX_BYTES / sizeof(float)];
    std::memcpy(tail, in + i, left * sizeof(In));
    store(convert(load(tail)), result);
    std::memcpy(out + i, result, left * sizeof(Out));
  }
}

void Bf16ToF32(const uint16_t* in, float* out, size_t count) {
  convert_all(in, out, count, [](VI32 half) HWY_ATTR { return widen_bf16(half); });
}
void F16ToF32(const uint16_t* in, float* out, size_t count) {
  convert_all(in, out, count, [](VI32 half) HWY_ATTR { return widen_f16(half); });
}
NumericCounts F32ToF16(const float* in, uint16_t* out, size_t count) {
  Counters counters = no_counts();
  convert_all(in, out, count, [&counters](VI32 bits) HWY_ATTR { return narrow_f16(bits, counters); });
  return totals(counters);
}
NumericCounts F32ToBf16(const float* in, uint16_t* out, size_t count) {
  Counters counters = no_counts();
  convert_all(in, out, count, [&counters](VI32 bits) HWY_ATTR { return narrow_bf16(bits, counters); });
  return totals(counters);
}
NumericCounts Bf16ToF16(const uint16_t* in, uint16_t* out, size_t count) {
  // The quiet bit that widening sets is set by narrowing anyway.
  Counters counters = no_counts();
  const auto convert = [&counters](VI32 half) HWY_ATTR { return narrow_f16(hn::ShiftLeft<16>(half), counters); };
  // Nearly all weights are zero or have a magnitude from 2^-14 to 65,280: exact in f16, by moving the exponent in 16-bit lanes.
  const hn::ScalableTag<int16_t> d;
  const size_t lanes = hn::Lanes(d);
  constexpr int16_t kSmallest = 113 << 7;
  constexpr int16_t kPastLargest = 143 << 7;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const int16_t*>(in + i));
    const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
    const auto sign = hn::AndNot(hn::Set(d, 0x7FFF), bits);
    const auto is_zero = hn::Eq(magnitude, hn::Zero(d));
    const auto is_normal = hn::And(hn::Gt(magnitude, hn::Set(d, kSmallest - 1)), hn::Lt(magnitude, hn::Set(d, kPastLargest)));
    if (hn::AllTrue(d, hn::Or(is_zero, is_normal))) {
      const auto moved = hn::ShiftLeft<3>(hn::Sub(magnitude, hn::Set(d, 112 << 7)));
      hn::StoreU(hn::Or(sign, hn::IfThenZeroElse(is_zero, moved)), d, reinterpret_cast<int16_t*>(out + i));
    } else {
      convert_all(in + i, out + i, lanes, convert);
    }
  }
  convert_all(in + i, out + i, count - i, convert);
  return totals(counters);
}
NumericCounts F16ToBf16(const uint16_t* in, uint16_t* out, size_t count) {
  Counters counters = no_counts();
  convert_all(in, out, count, [&counters](VI32 half) HWY_ATTR { return narrow_bf16(widen_f16(half), counters); });
  return totals(counters);
}

// Counts values whose magnitude is above that of infinity.
template <class Signed, class Value>
HWY_INLINE uint64_t count_above(const Value* values, size_t count, Signed magnitude_mask, Signed infinity) {
  const hn::ScalableTag<Signed> d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, magnitude_mask);
  const auto limit = hn::Set(d, infinity);
  uint64_t found = 0;
  size_t i = 0;
  while (i + lanes <= count) {
    // Lane counters hold 2^15 - 1 steps at least.
    const size_t stop = std::min(count, i + lanes * 0x7FFF);
    auto counter = hn::Zero(d);
    for (; i + lanes <= stop; i += lanes) {
      const auto bits = hn::LoadU(d, reinterpret_cast<const Signed*>(values + i));
      counter = hn::Sub(counter, hn::VecFromMask(d, hn::Gt(hn::And(bits, mask), limit)));
    }
    HWY_ALIGN Signed counts[HWY_MAX_BYTES / sizeof(Signed)];
    hn::Store(counter, d, counts);
    for (size_t lane = 0; lane < lanes; ++lane) found += static_cast<uint64_t>(counts[lane]);
  }
  for (; i < count; ++i) {
    Signed bits = 0;
    std::memcpy(&bits, values + i, sizeof(bits));
    found += (bits & magnitude_mask) > infinity ? 1 : 0;
  }
  return found;
}

uint64_t CountNanF32(const float* values, size_t count) { return count_above<int32_t>(values, count, kMagnitude32, kInfinity32); }
uint64_t CountNanF16(const uint16_t* values, size_t count) { return count_above<int16_t>(values, count, 0x7FFF, 0x7C00); }
uint64_t CountNanBf16(const uint16_t* values, size_t count) { return count_above<int16_t>(values, count, 0x7FFF, 0x7F80); }

void ScaleAndOffset(float* values, size_t count, float scale, float offset) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const auto scales = hn::Set(d, scale);
  const auto offsets = hn::Set(d, offset);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, values + i), scales), offsets), d, values + i);
  }
  for (; i < count; ++i) values[i] = values[i] * scale + offset;
}

template <class T>
HWY_INLINE void transpose_plain(const T* in, size_t in_stride, T* out, size_t out_stride, size_t rows, size_t columns) {
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void transpose_tile(const T* in, size_t in_stride, T* out, size_t out_stride) {
  constexpr size_t kTile = 16 / sizeof(T);
  transpose_plain(in, in_stride, out, out_stride, kTile, kTile);
}
#else
// 16 x 16, 8 x 8 or 4 x 4 values in 128-bit registers: interleaving rows i and i + n/2, log2(n) times, turns the tile.
template <class T>
HWY_INLINE void transpose_tile(const T* in, size_t in_stride, T* out, size_t out_stride) {
  constexpr size_t kTile = 16 / sizeof(T);
  const hn::FixedTag<T, kTile> d;
  hn::Vec<decltype(d)> rows[kTile];
  hn::Vec<decltype(d)> mixed[kTile];
  for (size_t r = 0; r < kTile; ++r) rows[r] = hn::LoadU(d, in + r * in_stride);
  for (size_t step = 1; step < kTile; step *= 2) {
    for (size_t r = 0; r < kTile / 2; ++r) {
      mixed[2 * r] = hn::InterleaveLower(d, rows[r], rows[r + kTile / 2]);
      mixed[2 * r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + kTile / 2]);
    }
    for (size_t r = 0; r < kTile; ++r) rows[r] = mixed[r];
  }
  for (size_t r = 0; r < kTile; ++r) hn::StoreU(rows[r], d, out + r * out_stride);
}
#endif

template <class T>
HWY_INLINE void transpose_blocks(const T* in, size_t in_stride, T* out, size_t out_stride, size_t rows, size_t columns) {
  constexpr size_t kTile = 16 / sizeof(T);
  const size_t whole_rows = rows - rows % kTile;
  const size_t whole_columns = columns - columns % kTile;
  // Along the rows first: an output row, far from the next one, is written in whole cache lines.
  for (size_t c = 0; c < whole_columns; c += kTile) {
    for (size_t r = 0; r < whole_rows; r += kTile) {
      transpose_tile(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
  transpose_plain(in + whole_rows * in_stride, in_stride, out + whole_rows, out_stride, rows - whole_rows, columns);
  transpose_plain(in + whole_columns, in_stride, out + whole_columns * out_stride, out_stride, whole_rows,
                  columns - whole_columns);
}

void TransposeU8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows, size_t columns) {
  transpose_blocks(in, in_stride, out, out_stride, rows, columns);
}
void TransposeU16(const uint16_t* in, size_t in_stride, uint16_t* out, size_t out_stride, size_t rows, size_t columns) {
  transpose_blocks(in, in_stride, out, out_stride, rows, columns);
}
void TransposeU32(const uint32_t* in, size_t in_stride, uint32_t* out, size_t out_stride, size_t rows, size_t columns) {
  transpose_blocks(in, in_stride, out, out_stride, rows, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace transload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload {

HWY_EXPORT(Bf16ToF32);
HWY_EXPORT(F16ToF32);
HWY_EXPORT(F32ToF16);
HWY_EXPORT(F32ToBf16);
HWY_EXPORT(Bf16ToF16);
HWY_EXPORT(F16ToBf16);
HWY_EXPORT(CountNanF32);
HWY_EXPORT(CountNanF16);
HWY_EXPORT(CountNanBf16);
HWY_EXPORT(ScaleAndOffset);
HWY_EXPORT(TransposeU8);
HWY_EXPORT(TransposeU16);
HWY_EXPORT(TransposeU32);

void convert_bf16_to_f32(const uint16_t* in, float* out, size_t count) { HWY_DYNAMIC_DISPATCH(Bf16ToF32)(in, out, count); }
void convert_f16_to_f32(const uint16_t* in, float* out, size_t count) { HWY_DYNAMIC_DISPATCH(F16ToF32)(in, out, count); }
NumericCounts convert_f32_to_f16(const float* in, uint16_t* out, size_t count) {
  return HWY_DYNAMIC_DISPATCH(F32ToF16)(in, out, count);
}
NumericCounts convert_f32_to_bf16(const float* in, uint16_t* out, size_t count) {
  return HWY_DYNAMIC_DISPATCH(F32ToBf16)(in, out, count);
}
NumericCounts convert_bf16_to_f16(const uint16_t* in, uint16_t* out, size_t count) {
  return HWY_DYNAMIC_DISPATCH(Bf16ToF16)(in, out, count);
}
NumericCounts convert_f16_to_bf16(const uint16_t* in, uint16_t* out, size_t count) {
  return HWY_DYNAMIC_DISPATCH(F16ToBf16)(in, out, count);
}
uint64_t count_nan_f32(const float* values, size_t count) { return HWY_DYNAMIC_DISPATCH(CountNanF32)(values, count); }
uint64_t count_nan_f16(const uint16_t* values, size_t count) { return HWY_DYNAMIC_DISPATCH(CountNanF16)(values, count); }
uint64_t count_nan_bf16(const uint16_t* values, size_t count) { return HWY_DYNAMIC_DISPATCH(CountNanBf16)(values, count); }
void scale_and_offset(float* values, size_t count, float scale, float offset) {
  HWY_DYNAMIC_DISPATCH(ScaleAndOffset)(values, count, scale, offset);
}
void transpose_u8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride, size_t rows, size_t columns) {
  HWY_DYNAMIC_DISPATCH(TransposeU8)(in, in_stride, out, out_stride, rows, columns);
}
void transpose_u16(const uint16_t* in, size_t in_stride, uint16_t* out, size_t out_stride, size_t rows, size_t columns) {
  HWY_DYNAMIC_DISPATCH(TransposeU16)(in, in_stride, out, out_stride, rows, columns);
}
void transpose_u32(const uint32_t* in, size_t in_stride, uint32_t* out, size_t out_stride, size_t rows, size_t columns) {
  HWY_DYNAMIC_DISPATCH(TransposeU32)(in, in_stride, out, out_stride, rows, columns);
}

std::vector<std::string> kernel_targets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void use_kernel_target(std::string_view name) {
  if (name.empty()) return hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (hwy::TargetName(target) == name) return hwy::GetChosenTarget().Update(target);
  }
  throw Error(ErrorCode::internal, "kernel target: got '" + std::string(name) + "', expected one of kernel_targets()");
}

}  // namespace transload
#endif  // HWY_ONCE
