// A test repeated on every instruction set that the kernels are compiled for and this machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weights/kernels.h"

namespace transload {

// Runs `test` once for each instruction set; failures name it.
template <class Test>
void on_every_target(const Test& test) {
  const std::vector<std::string> targets = kernel_targets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& target : targets) {
    SCOPED_TRACE(target);
    use_kernel_target(target);
    test();
    if (testing::Test::HasFatalFailure()) break;
  }
  use_kernel_target("");
}

}  // namespace transload
