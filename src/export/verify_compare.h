// Measures how far computed values are from expected ones: max abs, SQNR, cosine; KL and top tokens at the head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transload/dtype.h"
#include "transload/verify.h"

namespace transload {

// Accumulates over any number of calls. Values of `got` that are not finite are counted and left out of the sums.
class DifferenceSum {
 public:
  void add(std::span<const float> got, std::span<const float> expected);  // of one length
  void add(const DifferenceSum& other);
  Difference result() const;

 private:
  double max_abs_ = 0;
  double scale_ = 0;
  double expected_squares_ = 0;
  double got_squares_ = 0;
  double products_ = 0;
  double error_squares_ = 0;
  uint64_t not_finite_ = 0;
};

class HeadSum {
 public:
  void add_row(std::span<const float> got, std::span<const float> expected);
  HeadResult result() const;

 private:
  DifferenceSum logits_;
  double max_kl_ = 0;
  double kl_ = 0;
  double overlap_ = 0;
  uint64_t rows_ = 0;
  uint64_t top1_equal_ = 0;
};

// Index of the largest value, the first of equals; NaN never wins.
uint64_t best_index(std::span<const float> values);

// How a row of a value usually looks: medians over many tokens.
struct TypicalRow {
  double scale = 0;  // largest |value|
  double mean_square = 0;
};
TypicalRow typical_row(std::vector<TypicalRow> rows);
TypicalRow measure_row(std::span<const float> row);
// Below 2^-14 f16 keeps fewer bits the smaller a value is: where it computes, rows that lie there wholly are judged at that edge.
TypicalRow in_normal_range(const TypicalRow& row, DType compute);

// What is held against a tolerance.
struct Closeness {
  double relative = 0;
  double sqnr_db = 0;  // +inf when equal
  uint64_t not_finite = 0;
};
Closeness closeness_of(const Difference& difference);
// Of one row, at its own scale or the typical one, whichever is larger: a sum that cancels leaves a small row with the rounding
// of large terms, which says nothing of a fault.
Closeness row_closeness(std::span<const float> got, std::span<const float> expected, const TypicalRow& typical);

struct Tolerance {
  double relative = 0;
  double sqnr_floor_db = 0;  // 0: not asked for
  // Relative disturbance of norm weights that shows which values are ill-conditioned; 0: none are granted more.
  double disturbance = 0;
  bool holds(const Closeness& closeness) const;
  bool holds(const Difference& difference) const { return holds(closeness_of(difference)); }
};

// For a value that moved by `moved` when the norms were disturbed: several times that, where it is more than `tolerance`.
Tolerance widened(const Tolerance& tolerance, const Closeness& moved);

// "got 1.25, expected 0.5 at element 7: relative error 3.1e-02 (at most 1e-04), SQNR 31.2 dB (at least 80)"
std::string difference_text(const Closeness& closeness, const Tolerance& tolerance, double got, double expected,
                            uint64_t element);

// How the bundle stores and computes; the default tolerance follows from it.
enum class VerifyPrecision : uint8_t {
  f32_exact,    // weights f32, compute f32: the same numbers in another order of sums
  f16_exact,    // weights f16 of bf16 or f16 sources: what bf16 has below 2^-14 loses bits that are small beside its row
  f16_rounded,  // weights f16 of f32 or quantised sources
  f16_compute,  // every value between two nodes is rounded to f16
};
std::string_view precision_name(VerifyPrecision precision);
Tolerance default_tolerance(VerifyPrecision precision);

// Reference against a golden file: two float32 implementations.
Tolerance golden_tolerance();

}  // namespace transload
