// Activation functions in fp32, in place.
#pragma once

#include <cstdint>

#include "transload/decoder_model.h"

namespace transload {

void activate(Activation activation, float* values, uint64_t count);
void activate(GateActivation activation, float* values, uint64_t count);

// gate = act(min(gate, limit)).
void activate_gate(const Mlp& mlp, float* gate, uint64_t count);
// gate *= clamp(up, -limit, limit) + up_offset; `up` stays clamped.
void multiply_by_up(const Mlp& mlp, float* up, float* gate, uint64_t count);

}  // namespace transload
