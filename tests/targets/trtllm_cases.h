// The handed conversions of tests/data/trtllm as the tests read them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "targets/trtllm/config_text.h"
#include "transload/trtllm.h"

namespace transload {

inline std::filesystem::path trtllm_data() { return std::filesystem::path(TRANSLOAD_TEST_DATA) / "trtllm"; }

inline Json trtllm_json(const std::filesystem::path& file) {
  return parse_json(read_text_file(trtllm_data() / file), file.filename().string());
}

inline const std::vector<std::string>& trtllm_case_names() {
  static const std::vector<std::string> names = {"phi3-mini-4k",    "phi3-mini-128k", "phi3-medium-4k", "phi3-small-8k",
                                                 "phi3-small-128k", "phi35-moe",      "phi4-mini",      "phi3-separate"};
  return names;
}

inline std::string text_or_empty(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? std::string() : value->string();
}

inline uint32_t size_or_one(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? 1 : static_cast<uint32_t>(value->integer());
}

// "options" of a conversion.
inline TrtllmOptions trtllm_options(const Json& options, TrtllmFormat format) {
  TrtllmOptions out;
  out.format = format;
  out.dtype = find_trtllm_dtype(options.find("dtype")->string());
  out.mapping = {size_or_one(options, "tp_size"), size_or_one(options, "pp_size"), size_or_one(options, "moe_ep_size")};
  const std::string weight_only = text_or_empty(options, "weight_only");
  if (weight_only == "int8") out.weight_only = WeightOnly::int8;
  if (weight_only == "int4") out.weight_only = WeightOnly::int4;
  if (text_or_empty(options, "form") == "baked") out.form = QuantForm::baked;
  const std::string layout = text_or_empty(options, "layout");
  if (layout == "sm80") out.layout = QuantLayout::sm80;
  if (layout == "sm90") out.layout = QuantLayout::sm90;
  return out;
}

}  // namespace transload
