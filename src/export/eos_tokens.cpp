// Reads the stop tokens of generation_config.json.
#include "export/eos_tokens.h"

#include <fmt/format.h>

#include "export/bundle.h"
#include "io/file.h"
#include "io/json.h"
#include "transload/error.h"

namespace transload {

std::vector<int64_t> eos_tokens_of(const Checkpoint& checkpoint, const DecoderModel& model) {
  const std::filesystem::path path = checkpoint.directory() / "generation_config.json";
  if (checkpoint.format() == CheckpointFormat::gguf || !has_entry(path)) return model.eos_tokens;
  const Json config = parse_json(read_text_file(path), "generation_config.json");
  if (!config.is_object()) {
    throw Error(ErrorCode::config_invalid, fmt::format("config: got {}, expected an object", config.kind_name()),
                {"generation_config.json", {}, {}});
  }
  const Json* eos = config.find("eos_token_id");
  if (eos == nullptr || eos->is_null()) return model.eos_tokens;
  std::vector<int64_t> tokens;
  const Json::Array list = eos->is_array() ? eos->array() : Json::Array{*eos};
  for (const Json& token : list) {
    if (!token.is_integer()) {
      throw Error(
          ErrorCode::config_invalid,
          fmt::format("field 'eos_token_id': wrong type: got {}, expected an integer or a list of them", token.kind_name()),
          {"generation_config.json", {}, {}});
    }
    tokens.push_back(token.integer());
  }
  return tokens;
}

}  // namespace transload
