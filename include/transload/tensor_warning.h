// TensorWarning: NaN and overflow in the values of a written tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace transload {

// Values of one written tensor that no runtime can use.
struct TensorWarning {
  std::string tensor;                // as the graph or the rank file calls it
  std::vector<std::string> sources;  // the stored tensors it is made from
  uint64_t overflow_count = 0;       // finite values that became infinite in f16
  uint64_t nan_count = 0;
  std::string file = {};  // where several files have tensors of the same name
};
// "tensor 'layers_1_mlp_up_weight' (from 'model.layers.1.mlp.up_proj.weight'): 1 values overflow f16, 1 NaN"
std::string warning_text(const TensorWarning& warning);

}  // namespace transload
