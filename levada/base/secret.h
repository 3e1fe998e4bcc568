// What proves to a rank that another process is a rank of the same job.
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
/// A number that is used once, and a proof that its maker knows a Secret.
using Challenge = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 16>;

/// Of the system's generator. Throws EngineError if it has none.
Secret random_secret();
Challenge random_challenge();

/// A secret that depends on `secret` and does not reveal it. Each purpose has its own.
Secret derive_secret(const Secret& secret, std::string_view purpose);
/// Only who knows `secret` can compute it.
Proof prove(const Secret& secret, ByteView message);
/// Takes equally long for every `claimed`.
bool is_proven(const Secret& secret, ByteView message, ByteView claimed);

/// Lower-case hexadecimal digits.
std::string to_hex(ByteView bytes);

}  // namespace levada
