// The version the library reports.
#include "transload/version.h"

#include <gtest/gtest.h>

namespace transload {
namespace {

TEST(Version, IsTheOneOfTheHeader) { EXPECT_STREQ(version(), TRANSLOAD_VERSION); }

}  // namespace
}  // namespace transload
