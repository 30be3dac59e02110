// Names of the formats and layouts of TensorRT-LLM checkpoints, as options and reports spell them.
#include "transload/trtllm.h"

namespace transload {

std::string_view trtllm_format_name(TrtllmFormat format) {
  switch (format) {
    case TrtllmFormat::v0_12:
      return "0.12";
    case TrtllmFormat::v1:
      return "1.x";
  }
  return {};
}

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

}  // namespace transload
