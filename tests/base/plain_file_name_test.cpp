// Which names stay inside the folder of the file that says them.
#include "base/plain_file_name.h"

#include <gtest/gtest.h>

#include <string>

namespace transload {
namespace {

TEST(PlainFileName, IsANameWithoutAWayOutOfItsFolder) {
  for (const char* name : {"weights.bin", ".hidden", "...", "a b", "größe"}) EXPECT_TRUE(is_plain_file_name(name)) << name;
  for (const char* name : {"", ".", "..", "/etc/passwd", "a/b", "a\\b", "../a", "a/"}) {
    EXPECT_FALSE(is_plain_file_name(name)) << name;
  }
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
}

TEST(PlainFileName, IsNoLongerThanAFileSystemTakes) {
  EXPECT_TRUE(is_plain_file_name(std::string(255, 'a')));
  EXPECT_FALSE(is_plain_file_name(std::string(256, 'a')));
}

}  // namespace
}  // namespace transload
