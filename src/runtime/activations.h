// Activation functions in fp32, in place.
#pragma once

#include <cstdint>

#include "transload/decoder_model.h"

namespace transload {

void activate(Activation activation, float* values, uint64_t count);
void activate(GateActivation activation, float* values, uint64_t count);

}  // namespace transload
