// What each weight-only layout demands of a shape. The limits are those of TensorRT-LLM's own preprocessing.
#include "weights/quant_format.h"

#include <fmt/format.h>

#include "transload/error.h"

namespace transload {
namespace {

constexpr uint64_t kByteMultiple = 32;

bool is_preprocessed(QuantLayout layout) { return layout == QuantLayout::sm80 || layout == QuantLayout::sm90; }

}  // namespace

std::string_view quant_layout_name(QuantLayout layout) {
  switch (layout) {
    case QuantLayout::plain:
      return "plain";
    case QuantLayout::transpose:
      return "transpose";
    case QuantLayout::sm80:
      return "sm80";
    case QuantLayout::sm90:
      return "sm90";
  }
  return {};
}

uint64_t QuantFormat::group_channels() const {
  switch (layout) {
    case QuantLayout::plain:
      return out;
    case QuantLayout::transpose:
      return bits == 4 && in % 2 == 1 ? 2 : 1;
    case QuantLayout::sm80:
      return 16 / bits;
    case QuantLayout::sm90:
      return 1;
  }
  throw Error(ErrorCode::internal, fmt::format("quantisation layout: got {}, expected one of four", static_cast<int>(layout)));
}

QuantFormat quant_format(const WeightQuant& quant, const Shape& weight) {
  if (quant.bits != 8 && quant.bits != 4) {
    throw Error(ErrorCode::internal, fmt::format("bits of a quantised weight: got {}, expected 8 or 4", quant.bits));
  }
  if (weight.size() != 2 && weight.size() != 3) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("quantised weight: got shape {}, expected [out,in] or [n,out,in]", shape_text(weight)));
  }
  QuantFormat format;
  format.bits = quant.bits;
  format.layout = weight.size() == 3 && quant.layout == QuantLayout::sm90 ? QuantLayout::sm80 : quant.layout;
  format.matrices = weight.size() == 3 ? weight[0] : 1;
  format.out = weight[weight.size() - 2];
  format.in = weight.back();
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw Error(ErrorCode::quant_unsupported, fmt::format("weight {} does not fit in the {} layout: got {}, expected {}",
                                                          shape_text(weight), quant_text(format), got, expected));
  };
  if (element_count(weight) == 0) refuse("no elements", "at least one");
  if (quant.bits == 4 && format.out % 2 != 0) {
    refuse(fmt::format("{} output channels", format.out), "an even number: two share a byte");
  }
  if (is_preprocessed(format.layout)) {
    const uint64_t rows = format.packed_bytes(format.in);
    const uint64_t columns = format.packed_bytes(format.out);
    const uint64_t per_byte = 8 / quant.bits;
    if (format.in % (kByteMultiple * per_byte) != 0 || format.out % (kByteMultiple * per_byte) != 0) {
      refuse(fmt::format("row bytes {} and column bytes {}", rows, columns), "multiples of 32");
    }
  }
  if (format.layout == QuantLayout::sm80 && format.in % kQuantTileValues != 0) {
    refuse(fmt::format("{} input channels", format.in), "a multiple of 64, in which channels are interleaved");
  }
  return format;
}

std::string quant_text(const QuantFormat& format) {
  return fmt::format("int{} {}", format.bits, quant_layout_name(format.layout));
}

}  // namespace transload
