// BLAKE2s (RFC 7693): a cryptographic hash that takes a key, for what a stranger must not be able to compute. XXH3
// (hash.h) is faster and proves nothing to anyone who wants to deceive.
#pragma once

#include <array>
#include <cstddef>

#include "levada/base/bytes.h"

namespace levada {

using Blake2s = std::array<std::byte, 32>;

/// Returns BLAKE2s-256 of `message`. `key` has at most 32 bytes; with a key the result authenticates the message.
Blake2s blake2s(ByteView message, ByteView key = {});

}  // namespace levada
