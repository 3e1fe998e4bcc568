// BLAKE2s (RFC 7693): a keyed cryptographic hash, for values that an outsider must not be able to compute. XXH3
// (hash.h) is faster but does not protect against forgery.
#pragma once

#include <array>
#include <cstddef>

#include "levada/base/bytes.h"

namespace levada {

using Blake2s = std::array<std::byte, 32>;

/// Returns BLAKE2s-256 of `message`. `key` has at most 32 bytes; with a key the result authenticates the message.
Blake2s blake2s(ByteView message, ByteView key = {});

}  // namespace levada
