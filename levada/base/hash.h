// XXH3 hashes: 64 bits to identify things, 128 bits to prove that two runs saw the same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "levada/base/bytes.h"

namespace levada {

/// Returns XXH3-64 of `bytes`; the same on every platform.
std::uint64_t hash64(ByteView bytes, std::uint64_t seed = 0);

/// An incremental XXH3-128 (Y. Collet, xxHash 0.8). Movable. Used by one thread at a time.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void update(ByteView bytes);
  void update(std::string_view text) { update(as_bytes(text)); }
  /// Returns 32 lower-case hexadecimal digits in canonical (big-endian) order. update() may still be called afterwards.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levada
