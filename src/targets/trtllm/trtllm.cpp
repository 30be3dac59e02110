// Names of the formats of TensorRT-LLM checkpoints, as options and reports spell them.
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

}  // namespace transload
