// Binds the parts of a decoder layer under the names most families store them by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/decoder_config.h"
#include "model/tensor_source.h"
#include "transload/decoder_model.h"

namespace transload {

// <name>.weight [out, in] and, with `bias`, <name>.bias [out]
Linear linear(TensorSource& tensors, const std::string& name, uint64_t out, uint64_t in, bool bias = false);

// <name>.weight and <name>.bias, of a norm that takes the mean off
Norm layer_norm(TensorSource& tensors, const std::string& name, uint64_t width, double epsilon);

// <prefix>gate_proj, up_proj, down_proj
Mlp gated_mlp(TensorSource& tensors, const std::string& prefix, Activation activation, const DecoderConfig& config,
              bool bias = false);

// Heads and scale (head_dim^-0.5) only.
Attention attention_shape(const DecoderConfig& config);

// attention_shape with <prefix>q_proj, k_proj, v_proj, o_proj
Attention separate_attention(TensorSource& tensors, const std::string& prefix, const DecoderConfig& config, bool bias = false);

// The layer of Llama and Mistral: <prefix>{input_layernorm, self_attn, post_attention_layernorm, mlp}, SiLU.
Layer pre_norm_layer(TensorSource& tensors, const std::string& prefix, const DecoderConfig& config, bool attention_bias,
                     bool mlp_bias);

// The head: the embedding when tied (a stored `name` is then passed over with a warning), else the tensor `name`.
void bind_head(DecoderModel& model, TensorSource& tensors, const std::string& name, bool tied);

// Window and rope group of every layer: sliding layers use group "sw", full ones "full", of which only the used ones are kept.
void assign_attention_kinds(DecoderModel& model, const std::vector<bool>& sliding, uint32_t window, const RopeGroup& sliding_rope,
                            const RopeGroup& full_rope);

// The same for a family of one rotary table whose layers all slide; a window of every position there is is none.
void assign_one_window(DecoderModel& model, std::optional<uint32_t> window, const RopeGroup& rope);

}  // namespace transload
