// XXH3-128: the digest of tensors and small files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace transload {

class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void update(std::span<const std::byte> data);
  std::string hex() const;  // 32 lower-case hex digits, canonical (big-endian) byte order: equal to `xxhsum -H2`

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::string_view bytes);

}  // namespace transload
