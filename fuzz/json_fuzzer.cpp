// Any bytes are JSON that survives being written and read again, or an Error.
#include "io/json.h"
#include "memory_file.h"
#include "transload/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace transload;
  Json value;
  try {
    value = parse_json(as_text(data, size), "input.json");
  } catch (const Error&) {
    return 0;
  }
  must(parse_json(write_json(value), "written.json") == value);
  must(parse_json(write_json(value, 0), "written.json") == value);
  return 0;
}
