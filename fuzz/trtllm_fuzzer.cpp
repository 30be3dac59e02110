// Any config.json, of Hugging Face or of TensorRT-LLM, gives the text or the reading of a TensorRT-LLM config, or an Error.
#include <utility>

#include "io/json.h"
#include "memory_file.h"
#include "targets/trtllm/config_text.h"
#include "targets/trtllm/trtllm_config.h"
#include "transload/error.h"

namespace {

using namespace transload;

template <class Work>
void refuse_cleanly(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    must(exit_code(error.code()) != exit_code(ErrorCode::internal));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Json config;
  try {
    config = parse_json(as_text(data, size), "config.json");
  } catch (const Error&) {
    return 0;
  }
  for (const TrtllmFormat format : {TrtllmFormat::v0_12, TrtllmFormat::v1}) {
    refuse_cleanly([&] {
      TrtllmOptions options;
      options.format = format;
      const TrtllmArchitecture& architecture = trtllm_architecture_of(config, "config.json");
      const std::string text = trtllm_config_text(config, "config.json", architecture, options);
      must(parse_json(text, "config.json").is_object());
    });
  }
  refuse_cleanly([&] {
    TrtllmCheckpoint checkpoint;
    checkpoint.config = std::move(config);
    read_trtllm_config(checkpoint);
    must(checkpoint.architecture != nullptr);
  });
  return 0;
}
