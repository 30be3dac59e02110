// The family table: one row for each model family. Adding a family adds one file in families/ and one row here.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "io/json.h"
#include "model/config_reader.h"
#include "model/gguf_config.h"
#include "model/tensor_source.h"
#include "transload/decoder_model.h"

namespace transload {

// How a GGUF file of this family maps to the Hugging Face names and config fields.
struct GgufTensorRow {
  std::string_view gguf;          // "blk.{}.attn_q.weight" or "output_norm.weight"
  std::string_view hugging_face;  // "model.layers.{}.self_attn.q_proj.weight"
  enum class Form : uint8_t { plain, paired_rotary_q, paired_rotary_k, norm_plus_one } form = Form::plain;
};
struct GgufFamily {
  std::string_view architecture;  // general.architecture
  std::span<const GgufTensorRow> tensors;
  // Builds the Hugging Face config from the metadata: `metadata` reads the keys "<architecture>.…" without that prefix.
  Json (*config)(ConfigReader& metadata, const GgufFacts& facts);
  bool rope_divisors = false;  // tensor rope_freqs.weight divides the rotary frequencies
};

struct FamilyRow {
  std::string_view name;                          // "llama"
  std::span<const std::string_view> model_types;  // config.json model_type values
  DecoderModel (*build)(ConfigReader& config, TensorSource& tensors, const ModelOptions& options);
  const GgufFamily* gguf;  // nullptr: no GGUF form
};

extern const FamilyRow kSparkFamily;
extern const FamilyRow kLlamaFamily;
extern const FamilyRow kMistralFamily;
extern const FamilyRow kGemma3Family;
extern const FamilyRow kPhi3Family;
extern const FamilyRow kPhi3SmallFamily;
extern const FamilyRow kPhimoeFamily;

std::span<const FamilyRow> family_table();
// Throws arch_unknown naming the model_type and the families there are.
const FamilyRow& find_family(const Json& config, const std::string& config_file);
// Throws arch_unknown naming general.architecture and those there are.
const FamilyRow& find_gguf_family(const Json& metadata, const std::string& file);

}  // namespace transload
