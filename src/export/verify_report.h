// Phrases that the text and the HTML form of a verification report share.
#pragma once

#include <string>
#include <vector>

#include "transload/verify.h"

namespace transload {

std::string error_text(double value);                          // "1.25e-06", "0"
std::string decibel_text(double value);                        // "92.1", "equal"
std::string list_text(const std::vector<std::string>& items);  // the first few, then how many more
std::string verdict_of(const VerifyReport& report);            // one line
std::string tolerance_text(const VerifyReport& report);
std::string extremes_text(const VerifyReport& report);
std::string coverage_text(const VerifyReport& report);

}  // namespace transload
