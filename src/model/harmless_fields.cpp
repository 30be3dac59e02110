// The table of config fields that never change the maths of a decoder, and of those that do not at one value.
#include "model/harmless_fields.h"

#include <algorithm>
#include <array>
#include <utility>

namespace transload {
namespace {

constexpr auto kHarmless = std::to_array<std::string_view>({
    // What the files are and who wrote them.
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "_attn_implementation",
    "auto_map",
    "custom_pipelines",
    "dtype",
    "finetuning_task",
    "is_llama_config",
    "license",
    "model_name",
    "model_type",
    "name_or_path",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    // Token ids: the text around the model, not the model.
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    // Training.
    "attention_dropout",
    "attn_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "embedding_dropout",
    "hidden_dropout",
    "initializer_range",
    "resid_pdrop",
    "residual_dropout",
    "tf_legacy_loss",
    "use_bfloat16",
    // What a run returns, and how it keeps its cache.
    "cache_implementation",
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "use_cache",
    // Classification heads.
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // Sampling defaults that older configs carry.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
});

struct HarmlessValue {
  std::string_view field;
  bool value;
};
constexpr auto kHarmlessAt = std::to_array<HarmlessValue>({
    {"add_cross_attention", false},
    {"is_decoder", false},
    {"is_encoder_decoder", false},
    {"rope_interleaved", false},
    {"tie_encoder_decoder", false},
});

}  // namespace

bool never_changes_maths(std::string_view field, const Json& value) {
  if (std::find(kHarmless.begin(), kHarmless.end(), field) != kHarmless.end()) return true;
  if (field.starts_with("unsloth_")) return true;  // notes of a fine-tuning tool
  if (field == "pruned_heads") return value.is_object() && value.object().empty();
  const auto* row =
      std::find_if(kHarmlessAt.begin(), kHarmlessAt.end(), [&](const HarmlessValue& at) { return at.field == field; });
  return row != kHarmlessAt.end() && value.is_bool() && value.boolean() == row->value;
}

}  // namespace transload
