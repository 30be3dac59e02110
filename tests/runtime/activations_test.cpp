// Activation functions against values computed in double precision elsewhere.
#include "runtime/activations.h"

#include <gmock/gmock.h>

#include <cmath>

namespace transload {
namespace {

struct Point {
  double x, silu, gelu_erf, gelu_tanh, sigmoid;
};
constexpr Point kPoints[] = {
    {-100, 0, 0, 0, 0},
    {-5.5, -0.0223857574, -1.04442594e-07, -5.92764027e-09, 0.00407013772},
    {-1.25, -0.278375174, -0.132062217, -0.132285797, 0.222700139},
    {-0.001, -0.00049975, -0.000499601058, -0.000499601058, 0.49975},
    {0, 0, 0, 0, 0.5},
    {0.5, 0.311229666, 0.345731231, 0.34571401, 0.622459331},
    {2.75, 2.58476171, 2.74180565, 2.74227686, 0.93991335},
    {30, 30, 30, 30, 1},
};

template <class Kind>
float activated(Kind kind, double x) {
  auto value = static_cast<float>(x);
  activate(kind, &value, 1);
  return value;
}

TEST(Activations, AreExactToFp32) {
  for (const Point& point : kPoints) {
    const double tolerance = 3e-7 * std::fmax(1, std::abs(point.x));
    EXPECT_NEAR(activated(Activation::silu, point.x), point.silu, tolerance) << point.x;
    EXPECT_NEAR(activated(Activation::gelu_erf, point.x), point.gelu_erf, tolerance) << point.x;
    EXPECT_NEAR(activated(Activation::gelu_tanh, point.x), point.gelu_tanh, tolerance) << point.x;
    EXPECT_NEAR(activated(GateActivation::sigmoid, point.x), point.sigmoid, tolerance) << point.x;
    EXPECT_NEAR(activated(GateActivation::silu, point.x), point.silu, tolerance) << point.x;
  }
}

}  // namespace
}  // namespace transload
