// The quantiser's kernels, compiled once for each instruction set (Highway).
#include "weights/quant_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weights/quant_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway asks.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace transload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums run in 16 lanes whatever the width of a vector, so that they round alike on every instruction set.
constexpr size_t kSumLanes = 16;
using F32 = hn::CappedTag<float, kSumLanes>;
using I32 = hn::RebindToSigned<F32>;
using I8 = hn::Rebind<int8_t, F32>;
using VF32 = hn::Vec<F32>;
constexpr size_t kLanes = hn::MaxLanes(F32());
constexpr size_t kVectors = kSumLanes / kLanes;

template <class Signed, class Value>
HWY_INLINE Signed max_magnitude(const Value* values, size_t count, Signed mask) {
  const hn::ScalableTag<Signed> d;
  const size_t lanes = hn::Lanes(d);
  const auto masks = hn::Set(d, mask);
  auto largest = hn::Zero(d);
  auto second = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, reinterpret_cast<const Signed*>(values + i)), masks));
    second = hn::Max(second, hn::And(hn::LoadU(d, reinterpret_cast<const Signed*>(values + i + lanes)), masks));
  }
  HWY_ALIGN Signed each[HWY_MAX_BYTES / sizeof(Signed)];
  hn::Store(hn::Max(largest, second), d, each);
  Signed found = 0;
  for (size_t lane = 0; lane < lanes; ++lane) found = std::max(found, each[lane]);
  for (; i < count; ++i) {
    Signed bits = 0;
    std::memcpy(&bits, values + i, sizeof(bits));
    found = std::max<Signed>(found, static_cast<Signed>(bits & mask));
  }
  return found;
}

uint16_t MaxMagnitudeU16(const uint16_t* values, size_t count) {
  return static_cast<uint16_t>(max_magnitude<int16_t>(values, count, 0x7FFF));
}
uint32_t MaxMagnitudeF32(const float* values, size_t count) {
  return static_cast<uint32_t>(max_magnitude<int32_t>(values, count, 0x7FFFFFFF));
}

// In 16 lanes each, as kVectors vectors.
struct Sums {
  VF32 max_abs[kVectors];
  VF32 signal[kVectors];
  VF32 noise[kVectors];
};

struct Quantizer {
  VF32 scale;
  VF32 ratio;
  VF32 lowest;
  VF32 highest;
  VF32 almost_half;  // the float below 0.5: added and truncated, it rounds half away from zero and nothing below

  HWY_INLINE void step(const float* values, int8_t* q, Sums& sums, size_t vector) const {
    const F32 d;
    const I32 di;
    const VF32 x = hn::Div(hn::LoadU(d, values), scale);
    const VF32 clamped = hn::Min(hn::Max(x, lowest), highest);
    const auto rounded = hn::ConvertTo(di, hn::Add(clamped, hn::CopySign(almost_half, clamped)));
    hn::StoreU(hn::DemoteTo(I8(), rounded), I8(), q);
    const VF32 difference = hn::Sub(x, hn::Mul(hn::ConvertTo(d, rounded), ratio));
    sums.max_abs[vector] = hn::Max(sums.max_abs[vector], hn::Abs(difference));
    sums.signal[vector] = hn::Add(sums.signal[vector], hn::Mul(x, x));
    sums.noise[vector] = hn::Add(sums.noise[vector], hn::Mul(difference, difference));
  }
};

UnitError QuantizeValues(const float* values, size_t count, float scale, float ratio, int bits, int8_t* q) {
  const F32 d;
  const auto half = static_cast<float>(1 << (bits - 1));
  const Quantizer quantizer{hn::Set(d, scale), hn::Set(d, ratio), hn::Set(d, -half), hn::Set(d, half - 1),
                            hn::Set(d, 0.49999997F)};
  Sums sums;
  for (size_t v = 0; v < kVectors; ++v) sums.max_abs[v] = sums.signal[v] = sums.noise[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t v = 0; v < kVectors; ++v) quantizer.step(values + i + v * kLanes, q + i + v * kLanes, sums, v);
  }
  if (i < count) {  // zeros add nothing
    HWY_ALIGN float tail[kSumLanes] = {};
    HWY_ALIGN int8_t result[kSumLanes];
    std::memcpy(tail, values + i, (count - i) * sizeof(float));
    for (size_t v = 0; v < kVectors; ++v) quantizer.step(tail + v * kLanes, result + v * kLanes, sums, v);
    std::memcpy(q + i, result, count - i);
  }
  UnitError error;
  HWY_ALIGN float lanes[3][kLanes];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(sums.max_abs[v], d, lanes[0]);
    hn::Store(sums.signal[v], d, lanes[1]);
    hn::Store(sums.noise[v], d, lanes[2]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      error.max_abs = std::max(error.max_abs, lanes[0][lane]);
      error.signal += static_cast<double>(lanes[1][lane]);
      error.noise += static_cast<double>(lanes[2][lane]);
    }
  }
  return error;
}

// The orders below are the row permutation and the register shuffle in one; the bias makes signed values unsigned.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void permute_32_int8(const int8_t* q, uint8_t* out) {
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(q[i / 16 * 16 + i % 2 * 8 + i % 16 / 2] + 128);
}
HWY_INLINE void permute_32_int4(const int8_t* q, uint8_t* out) {
  for (size_t i = 0; i < 16; ++i) {
    const size_t low = i % 2 * 16 + i / 2;
    out[i] = static_cast<uint8_t>((q[low] + 8) | ((q[low + 8] + 8) << 4));
  }
}
#else
HWY_INLINE void permute_32_int8(const int8_t* q, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  const auto bias = hn::Set(d, uint8_t{128});
  for (size_t i = 0; i < 32; i += 16) {
    const auto values = hn::LoadU(d, reinterpret_cast<const uint8_t*>(q) + i);
    const auto ordered = hn::InterleaveLower(d, values, hn::ShiftRightBytes<8>(d, values));
    hn::StoreU(hn::Xor(ordered, bias), d, out + i);
  }
}
HWY_INLINE void permute_32_int4(const int8_t* q, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  const auto bias = hn::Set(d, uint8_t{8});
  const auto first = hn::Add(hn::LoadU(d, reinterpret_cast<const uint8_t*>(q)), bias);
  const auto second = hn::Add(hn::LoadU(d, reinterpret_cast<const uint8_t*>(q) + 16), bias);
  const auto low = hn::InterleaveLower(d, first, second);
  const auto high = hn::InterleaveUpper(d, first, second);
  hn::StoreU(hn::Or(low, hn::ShiftLeft<4>(high)), d, out);
}
#endif

void PermuteInt8(const int8_t* q, size_t count, uint8_t* out, size_t stride) {
  for (size_t i = 0; i < count; i += 32) permute_32_int8(q + i, out + i / 64 * stride + i % 64);
}
void PermuteInt4(const int8_t* q, size_t count, uint8_t* out, size_t stride) {
  for (size_t i = 0; i < count; i += 32) permute_32_int4(q + i, out + i / 64 * stride + i % 64 / 2);
}

}  // namespace HWY_NAMESPACE
}  // namespace transload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace transload {

HWY_EXPORT(MaxMagnitudeU16);
HWY_EXPORT(MaxMagnitudeF32);
HWY_EXPORT(QuantizeValues);
HWY_EXPORT(PermuteInt8);
HWY_EXPORT(PermuteInt4);

uint16_t max_magnitude_u16(const uint16_t* values, size_t count) { return HWY_DYNAMIC_DISPATCH(MaxMagnitudeU16)(values, count); }
uint32_t max_magnitude_f32(const float* values, size_t count) { return HWY_DYNAMIC_DISPATCH(MaxMagnitudeF32)(values, count); }
UnitError quantize_values(const float* values, size_t count, float scale, float ratio, int bits, int8_t* q) {
  return HWY_DYNAMIC_DISPATCH(QuantizeValues)(values, count, scale, ratio, bits, q);
}
void permute_int8(const int8_t* q, size_t count, uint8_t* out, size_t stride) {
  HWY_DYNAMIC_DISPATCH(PermuteInt8)(q, count, out, stride);
}
void permute_int4(const int8_t* q, size_t count, uint8_t* out, size_t stride) {
  HWY_DYNAMIC_DISPATCH(PermuteInt4)(q, count, out, stride);
}
void pack_int4(const int8_t* low, const int8_t* high, size_t step, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((low[i * step] & 15) | (high[i * step] << 4));
}

}  // namespace transload
#endif  // HWY_ONCE
