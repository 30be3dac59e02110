// XXH3-128 by way of xxHash, inlined so that nothing is linked.
#include "io/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace transload {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::update(std::span<const std::byte> data) { XXH3_128bits_update(&state_->xxh3, data.data(), data.size()); }

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

std::string digest_of(std::string_view bytes) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(bytes)));
  return hasher.hex();
}

}  // namespace transload
