// Lets a process prove to a rank that it is a rank of the same job.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "levada/base/blake2s.h"
#include "levada/base/bytes.h"

namespace levada {

/// 32 bytes that only the ranks of one job know.
using Secret = Blake2s;
/// A Challenge is a nonce. A Proof shows that its sender knows a Secret.
using Challenge = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 16>;

/// Return bytes of the system's random generator. Throw EngineError if it has none.
Secret random_secret();
Challenge random_challenge();

/// Returns a secret that is derived from `secret` and does not reveal it. Each purpose yields a different one.
Secret derive_secret(const Secret& secret, std::string_view purpose);
/// Returns a proof that only a process that knows `secret` can compute.
Proof prove(const Secret& secret, ByteView message);
/// Returns whether `claimed` is the result of prove(). Takes constant time.
bool is_proven(const Secret& secret, ByteView message, ByteView claimed);

/// Returns lower-case hexadecimal digits.
std::string to_hex(ByteView bytes);

}  // namespace levada
