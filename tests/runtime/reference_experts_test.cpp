// Sparse mixer on logits whose result is found by hand.
#include "runtime/reference_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace transload {
namespace {

std::vector<float> mixed(const std::vector<float>& logits, double jitter) {
  std::vector<float> weights(logits.size(), -1);
  sparse_mixer(logits, jitter, weights.data());
  return weights;
}

// The softmax weight of the first of logits that lie `gaps` below it.
float share(const std::vector<double>& gaps) {
  double sum = 1;
  for (const double gap : gaps) sum += std::exp(-gap);
  return static_cast<float>(1 / sum);
}

TEST(SparseMixer, WeighsTheTwoBestAmongThoseNearThem) {
  struct Row {
    const char* what;
    std::vector<float> logits;
    double jitter;
    std::vector<float> weights;
  };
  const std::vector<Row> rows = {
      {"far apart: each alone", {1, 4, 2, 3}, 0.01, {0, 1, 0, 1}},
      {"the second near the first", {8, 7, 1}, 0.1, {share({1}), 1, 0}},
      {"at the edge of the margin", {8, 6, 1}, 0.125, {share({2}), 1, 0}},
      {"the third near the second alone", {10, 7.5F, 6.5F}, 0.1, {1, share({1}), 0}},
      {"all near", {4, 3, 2}, 0.5, {share({1, 2}), share({1}), 0}},
      {"equal: the lowest first", {2, 5, 5, 5}, 0.01, {0, share({0, 0}), share({0}), 0}},
      {"the first is the best of two", {3, 1}, 0, {1, 1}},
      {"negative: the margin is of the farther", {-2, -1, -4}, 0.25, {share({2}), share({1}), 0}},
      {"negative, narrow", {-2, -1, -4}, 0.2, {1, 1, 0}},
      {"all zero", {0, 0, 0}, 0.01, {share({0, 0}), share({0}), 0}},
      {"no jitter: equals only", {1, 1, 0.5F}, 0, {share({0}), 1, 0}},
      {"large logits", {300, 100, 299}, 0.01, {share({1}), 0, 1}},
  };
  for (const Row& row : rows) {
    const std::vector<float> got = mixed(row.logits, row.jitter);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], row.weights[i]) << row.what << ", expert " << i;
  }
}

}  // namespace
}  // namespace transload
