// Weights for computing: a recipe becomes rows that are read where they lie in a mapped file, in their stored dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/mapped_file.h"
#include "transload/recipe.h"

namespace transload {

// [rows, columns], row-major. Each row is contiguous in its stored dtype; rows may lie anywhere (a fused tensor's slice, rotary
// row order). Valid as long as the WeightStore that made it.
class WeightMatrix {
 public:
  DType dtype = DType::f32;
  uint64_t rows = 0;
  uint64_t columns = 0;

  const std::byte* row(uint64_t index) const { return starts_.empty() ? base_ + index * row_bytes_ : starts_[index]; }

 private:
  friend class WeightStore;
  const std::byte* base_ = nullptr;
  uint64_t row_bytes_ = 0;
  std::vector<const std::byte*> starts_;
};

// Maps each file once and keeps what had to be computed (norm weights, transposed or rescaled matrices) as f32. Not thread-safe
// while adding; matrices may be read by any number of threads.
class WeightStore {
 public:
  // The recipe as a matrix of `rows` x (elements / rows). Row-wise views of stored tensors stay mapped; casts that keep every
  // value (f16 to f32 and the like) vanish; anything else is computed into memory of the store. Throws bad_offset, io_failure,
  // dtype_mismatch (integers), shape_mismatch (rows that the values do not fill).
  WeightMatrix matrix(const Recipe& recipe, uint64_t rows);
  WeightMatrix matrix(const Recipe& recipe);  // rows = shape[0]
  // Small tensors: all values in f32.
  std::vector<float> values(const Recipe& recipe);

  uint64_t mapped_bytes() const;  // of the tensors that are read in place, each once
  uint64_t owned_bytes() const;   // of computed ones

  WeightStore();
  WeightStore(const WeightStore&) = delete;
  ~WeightStore();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace transload
