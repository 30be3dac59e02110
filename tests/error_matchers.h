// Matchers that make a test of a refusal read as one line: EXPECT_THAT(call, Fails(ErrorCode::bad_offset, HasSubstr("lm_head"))).
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "transload/error.h"

namespace transload {

MATCHER_P2(Fails, code, text_matcher, "throws " + std::string(error_code_name(code))) {
  try {
    arg();
  } catch (const Error& error) {
    *result_listener << "which throws " << error_code_name(error.code()) << ": " << error.what();
    return error.code() == code && testing::ExplainMatchResult(text_matcher, std::string(error.what()), result_listener);
  } catch (const std::exception& error) {
    *result_listener << "which throws another type: " << error.what();
    return false;
  }
  *result_listener << "which does not throw";
  return false;
}

}  // namespace transload
