// Difference sums and the tolerances of each precision.
#include "export/verify_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "transload/decoder.h"

namespace transload {
namespace {

constexpr uint32_t kTop = 5;
constexpr double kMovesGranted = 8;

// ln sum exp
double log_sum_exp(std::span<const float> values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const float value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

void DifferenceSum::add(std::span<const float> got, std::span<const float> expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    const double g = got[i];
    scale_ = std::max(scale_, std::abs(e));
    if (!std::isfinite(g)) {
      ++not_finite_;
      continue;
    }
    max_abs_ = std::max(max_abs_, std::abs(g - e));
    expected_squares_ += e * e;
    got_squares_ += g * g;
    products_ += g * e;
    error_squares_ += (g - e) * (g - e);
  }
}

void DifferenceSum::add(const DifferenceSum& other) {
  max_abs_ = std::max(max_abs_, other.max_abs_);
  scale_ = std::max(scale_, other.scale_);
  expected_squares_ += other.expected_squares_;
  got_squares_ += other.got_squares_;
  products_ += other.products_;
  error_squares_ += other.error_squares_;
  not_finite_ += other.not_finite_;
}

Difference DifferenceSum::result() const {
  Difference out;
  out.max_abs = max_abs_;
  out.scale = scale_;
  out.not_finite = not_finite_;
  out.sqnr_db = std::numeric_limits<double>::infinity();
  if (error_squares_ > 0) {
    out.sqnr_db =
        expected_squares_ > 0 ? 10 * std::log10(expected_squares_ / error_squares_) : -std::numeric_limits<double>::infinity();
  }
  const double norms = std::sqrt(expected_squares_) * std::sqrt(got_squares_);
  out.cosine = norms > 0 ? std::clamp(products_ / norms, -1.0, 1.0) : (error_squares_ > 0 ? 0.0 : 1.0);
  return out;
}

void HeadSum::add_row(std::span<const float> got, std::span<const float> expected) {
  logits_.add(got, expected);
  ++rows_;
  if (best_index(got) == best_index(expected)) ++top1_equal_;
  if (!all_finite(got) || !all_finite(expected)) return;
  const double got_sum = log_sum_exp(got);
  const double expected_sum = log_sum_exp(expected);
  double kl = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double log_p = expected[i] - expected_sum;
    kl += std::exp(log_p) * (log_p - (got[i] - got_sum));
  }
  kl = std::max(kl, 0.0);  // rounding alone can make a sum of zeros negative
  max_kl_ = std::max(max_kl_, kl);
  kl_ += kl;
  const std::vector<ScoredToken> best = top_logits(expected, kTop);
  const std::vector<ScoredToken> found = top_logits(got, kTop);
  const auto shared = std::count_if(best.begin(), best.end(), [&](const ScoredToken& token) {
    return std::any_of(found.begin(), found.end(), [&](const ScoredToken& other) { return other.id == token.id; });
  });
  overlap_ += static_cast<double>(shared) / static_cast<double>(best.size());
}

HeadResult HeadSum::result() const {
  const double rows = rows_ > 0 ? static_cast<double>(rows_) : 1;
  return {logits_.result(), max_kl_, kl_ / rows, rows_, top1_equal_, overlap_ / rows};
}

uint64_t best_index(std::span<const float> values) {
  uint64_t best = 0;
  for (uint64_t i = 1; i < values.size(); ++i) {
    if (values[i] > values[best] || std::isnan(values[best])) best = i;
  }
  return best;
}

TypicalRow measure_row(std::span<const float> row) {
  TypicalRow out;
  for (const float value : row) {
    out.scale = std::max(out.scale, std::abs(static_cast<double>(value)));
    out.mean_square += static_cast<double>(value) * value;
  }
  if (!row.empty()) out.mean_square /= static_cast<double>(row.size());
  return out;
}

TypicalRow typical_row(std::vector<TypicalRow> rows) {
  if (rows.empty()) return {};
  const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
  TypicalRow typical;
  std::nth_element(rows.begin(), middle, rows.end(), [](const auto& a, const auto& b) { return a.scale < b.scale; });
  typical.scale = middle->scale;
  std::nth_element(rows.begin(), middle, rows.end(), [](const auto& a, const auto& b) { return a.mean_square < b.mean_square; });
  typical.mean_square = middle->mean_square;
  return typical;
}

TypicalRow in_normal_range(const TypicalRow& row, DType compute) {
  constexpr double kLeastNormalF16 = 0x1p-14;
  if (compute != DType::f16) return row;
  return {std::max(row.scale, kLeastNormalF16), std::max(row.mean_square, kLeastNormalF16 * kLeastNormalF16)};
}

Closeness closeness_of(const Difference& difference) {
  return {difference.relative(), difference.sqnr_db, difference.not_finite};
}

Closeness row_closeness(std::span<const float> got, std::span<const float> expected, const TypicalRow& typical) {
  Closeness closeness;
  const TypicalRow own = measure_row(expected);
  double largest = 0;
  double squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(got[i])) {
      ++closeness.not_finite;
      continue;
    }
    const double error = static_cast<double>(got[i]) - expected[i];
    largest = std::max(largest, std::abs(error));
    squares += error * error;
  }
  const double scale = std::max(own.scale, typical.scale);
  closeness.relative = scale > 0 ? largest / scale : largest;
  closeness.sqnr_db = std::numeric_limits<double>::infinity();
  if (squares > 0) {
    const double signal = std::max(own.mean_square, typical.mean_square) * static_cast<double>(expected.size());
    closeness.sqnr_db = signal > 0 ? 10 * std::log10(signal / squares) : -std::numeric_limits<double>::infinity();
  }
  return closeness;
}

bool Tolerance::holds(const Closeness& closeness) const {
  return closeness.not_finite == 0 && closeness.relative <= relative &&
         (sqnr_floor_db <= 0 || closeness.sqnr_db >= sqnr_floor_db);
}

Tolerance widened(const Tolerance& tolerance, const Closeness& moved) {
  if (tolerance.disturbance <= 0) return tolerance;
  Tolerance out = tolerance;
  out.relative = std::max(out.relative, kMovesGranted * moved.relative);
  out.sqnr_floor_db = std::min(out.sqnr_floor_db, moved.sqnr_db - 20 * std::log10(kMovesGranted));
  return out;
}

std::string difference_text(const Closeness& closeness, const Tolerance& tolerance, double got, double expected,
                            uint64_t element) {
  std::string text = fmt::format("got {:.6g}, expected {:.6g} at element {}: relative error {:.2e} (at most {:.1e})", got,
                                 expected, element, closeness.relative, tolerance.relative);
  if (tolerance.sqnr_floor_db > 0) {
    text += fmt::format(", SQNR {:.1f} dB (at least {:.0f})", closeness.sqnr_db, tolerance.sqnr_floor_db);
  }
  if (closeness.not_finite > 0) text += fmt::format(", {} values NaN or infinite", closeness.not_finite);
  return text;
}

namespace {

struct PrecisionRow {
  VerifyPrecision precision;
  std::string_view name;
  Tolerance tolerance;
};

// Several times the largest error measured over all golden decoders and two trained models; docs/verify.md has the figures.
constexpr std::array<PrecisionRow, 4> kPrecisions = {{
    {VerifyPrecision::f32_exact, "weights f32, compute f32", {5e-5, 90, 0x1p-21}},
    {VerifyPrecision::f16_exact, "weights f16 of bf16 or f16 sources, compute f32", {5e-5, 90, 0x1p-21}},
    {VerifyPrecision::f16_rounded, "weights f16 of wider sources, compute f32", {1e-2, 40, 0x1p-11}},
    {VerifyPrecision::f16_compute, "weights f16, compute f16", {4e-2, 30, 0x1p-10}},
}};

const PrecisionRow& row_of(VerifyPrecision precision) { return kPrecisions[static_cast<size_t>(precision)]; }

}  // namespace

std::string_view precision_name(VerifyPrecision precision) { return row_of(precision).name; }
Tolerance default_tolerance(VerifyPrecision precision) { return row_of(precision).tolerance; }
Tolerance golden_tolerance() { return {1e-4, 0, 0}; }

}  // namespace transload
