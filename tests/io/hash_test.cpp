// XXH3-128 against digests printed by `xxhsum -H2`.
#include "io/hash.h"

#include <gtest/gtest.h>

namespace transload {
namespace {

std::string ramp(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

TEST(Hasher, EqualsXxhsum) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(digest_of(ramp(200)), "cb0395310643ba0edd97e9af3609d9f5");
  EXPECT_EQ(digest_of(ramp(100000)), "54182c58bbb1337c42c23aeead96750d");
}

TEST(Hasher, DoesNotDependOnHowTheBytesAreCut) {
  const std::string bytes = ramp(100000);
  for (const size_t cut : {size_t{1}, size_t{7}, size_t{4096}, size_t{65537}}) {
    Hasher hasher;
    for (size_t at = 0; at < bytes.size(); at += cut)
      hasher.update(std::as_bytes(std::span(bytes)).subspan(at, std::min(cut, bytes.size() - at)));
    EXPECT_EQ(hasher.hex(), digest_of(bytes)) << cut;
  }
}

TEST(Hasher, CanBeMovedAndGoOn) {
  Hasher first;
  first.update(std::as_bytes(std::span("ab", 2)));
  EXPECT_EQ(first.hex(), digest_of("ab"));
  Hasher second(std::move(first));
  second.update(std::as_bytes(std::span("c", 1)));
  EXPECT_EQ(second.hex(), digest_of("abc"));
}

}  // namespace
}  // namespace transload
