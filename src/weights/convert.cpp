// Runs go through fp32 in chunks that stay in the L1 cache, unless one kernel does the whole conversion.
#include "weights/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "transload/error.h"
#include "weights/dequantize.h"

namespace transload {
namespace {

constexpr size_t kChunk = 2048;       // values
constexpr size_t kMostInBlock = 256;  // values of the largest block type

// Memory from a file: aligned for its type by construction (runs start at the start of a buffer), typed here.
template <class T>
const T* typed(const std::byte* bytes) {
  return reinterpret_cast<const T*>(bytes);
}
template <class T>
T* typed(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

template <class T>
void load_plain(const std::byte* in, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

template <float (*Decode)(uint8_t)>
void load_table(const std::byte* in, size_t count, float* out) {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = Decode(static_cast<uint8_t>(i));
    return values;
  }();
  for (size_t i = 0; i < count; ++i) out[i] = table[std::to_integer<uint8_t>(in[i])];
}

template <class Test>
uint64_t count_where(size_t count, const Test& test) {
  uint64_t found = 0;
  for (size_t i = 0; i < count; ++i) found += test(i) ? 1 : 0;
  return found;
}

}  // namespace

void convert_to_f32(DType dtype, const std::byte* in, size_t count, float* out) {
  switch (dtype) {
    case DType::f64:
      return load_plain<double>(in, count, out);
    case DType::f32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::f16:
      return convert_f16_to_f32(typed<uint16_t>(in), out, count);
    case DType::bf16:
      return convert_bf16_to_f32(typed<uint16_t>(in), out, count);
    case DType::f8_e4m3:
      return load_table<f8_e4m3_to_f32>(in, count, out);
    case DType::f8_e5m2:
      return load_table<f8_e5m2_to_f32>(in, count, out);
    case DType::i64:
      return load_plain<int64_t>(in, count, out);
    case DType::i32:
      return load_plain<int32_t>(in, count, out);
    case DType::i16:
      return load_plain<int16_t>(in, count, out);
    case DType::i8:
      return load_plain<int8_t>(in, count, out);
    case DType::u64:
      return load_plain<uint64_t>(in, count, out);
    case DType::u32:
      return load_plain<uint32_t>(in, count, out);
    case DType::u16:
      return load_plain<uint16_t>(in, count, out);
    case DType::u8:
    case DType::boolean:
      return load_plain<uint8_t>(in, count, out);
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::mxfp4:
      return dequantize(dtype, in, count / dtype_info(dtype).block_elements, out);
  }
  throw Error(ErrorCode::internal,
              fmt::format("conversion to f32: got dtype {}, expected one of the table", static_cast<int>(dtype)));
}

RunConverter::RunConverter() : values_(kChunk + 2 * kMostInBlock), halves_(kChunk) {}

size_t RunConverter::scratch_bytes() { return (kChunk + 2 * kMostInBlock) * sizeof(float) + kChunk * sizeof(uint16_t); }

// Returns a pointer into values_.
float* RunConverter::load(DType dtype, const std::byte* in, size_t first, size_t count) {
  const DTypeInfo& info = dtype_info(dtype);
  const size_t lead = first % info.block_elements;
  const size_t blocks = (lead + count + info.block_elements - 1) / info.block_elements;
  convert_to_f32(dtype, in + first / info.block_elements * info.block_bytes, blocks * info.block_elements, values_.data());
  return values_.data() + lead;
}

NumericCounts RunConverter::convert(DType in_dtype, const std::byte* in, size_t first, size_t count, const ElementSteps& steps,
                                    DType out_dtype, std::byte* out) {
  const std::byte* start = in + packed_bytes(in_dtype, first);  // of the block that holds `first`
  if (steps.empty()) {
    if (in_dtype == out_dtype) {
      if (start != out) std::memcpy(out, start, packed_bytes(out_dtype, count));
      return {0, count_nan(out_dtype, out, count)};
    }
    if (in_dtype == DType::bf16 && out_dtype == DType::f16) {
      return convert_bf16_to_f16(typed<uint16_t>(start), typed<uint16_t>(out), count);
    }
    if (in_dtype == DType::f16 && out_dtype == DType::bf16) {
      return convert_f16_to_bf16(typed<uint16_t>(start), typed<uint16_t>(out), count);
    }
    if (in_dtype == DType::f32 && out_dtype == DType::f16)
      return convert_f32_to_f16(typed<float>(start), typed<uint16_t>(out), count);
    if (in_dtype == DType::f32 && out_dtype == DType::bf16) {
      return convert_f32_to_bf16(typed<float>(start), typed<uint16_t>(out), count);
    }
  }
  NumericCounts counts;
  for (size_t done = 0; done < count;) {
    const size_t chunk = std::min(kChunk, count - done);
    float* values = load(in_dtype, in, first + done, chunk);
    for (const ElementStep& step : steps) {
      if (step.kind == ElementStep::Kind::affine) {
        scale_and_offset(values, chunk, step.scale, step.offset);
      } else if (step.dtype == DType::f16) {
        counts.overflow += convert_f32_to_f16(values, halves_.data(), chunk).overflow;
        convert_f16_to_f32(halves_.data(), values, chunk);
      } else {
        convert_f32_to_bf16(values, halves_.data(), chunk);
        convert_bf16_to_f32(halves_.data(), values, chunk);
      }
    }
    std::byte* to = out + packed_bytes(out_dtype, done);
    if (out_dtype == DType::f32) {
      std::memcpy(to, values, chunk * sizeof(float));
      counts.nan += count_nan_f32(values, chunk);
    } else if (out_dtype == DType::f16) {
      counts += convert_f32_to_f16(values, typed<uint16_t>(to), chunk);
    } else if (out_dtype == DType::bf16) {
      counts += convert_f32_to_bf16(values, typed<uint16_t>(to), chunk);
    } else {
      throw Error(ErrorCode::internal, fmt::format("conversion: got {} to {}, expected f32, f16 or bf16", dtype_name(in_dtype),
                                                   dtype_name(out_dtype)));
    }
    done += chunk;
  }
  return counts;
}

uint64_t count_nan(DType dtype, const std::byte* values, size_t count) {
  switch (dtype) {
    case DType::f64:
      return count_where(count, [v = typed<double>(values)](size_t i) { return std::isnan(v[i]); });
    case DType::f32:
      return count_nan_f32(typed<float>(values), count);
    case DType::f16:
      return count_nan_f16(typed<uint16_t>(values), count);
    case DType::bf16:
      return count_nan_bf16(typed<uint16_t>(values), count);
    case DType::f8_e4m3:
      return count_where(count, [v = typed<uint8_t>(values)](size_t i) { return (v[i] & 0x7F) == 0x7F; });
    case DType::f8_e5m2:
      return count_where(count, [v = typed<uint8_t>(values)](size_t i) { return (v[i] & 0x7F) > 0x7C; });
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::boolean:
    case DType::q4_0:
    case DType::q4_1:
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k:
    case DType::q5_k:
    case DType::q6_k:
    case DType::mxfp4:
      return 0;
  }
  return 0;
}

}  // namespace transload
