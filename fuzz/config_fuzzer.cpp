// Any config.json gives the tensors of a model, or an Error.
#include "io/json.h"
#include "memory_file.h"
#include "model/expected_tensors.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace transload;
  try {
    const Json config = parse_json(as_text(data, size), "config.json");
    must(!expected_tensors(config, "config.json").empty());
  } catch (const Error& error) {
    must(exit_code(error.code()) != exit_code(ErrorCode::internal));
  }
  return 0;
}
