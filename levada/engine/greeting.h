// The first 64 bytes that ranks exchange in any join, over any medium. Their layout never changes, so that ranks of
// different releases of Levada can name the difference:
//
// clang-format off
//    0   8  "levada\r\n"
//    8   4  the number of the protocol, little-endian
//   12   4  zero
//   16  16  the release, such as "0.2.0", padded with zeros
//   32  32  the medium's: a host's name in a group; a challenge and a proof on a link within a host
// clang-format on
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "levada/base/bytes.h"

namespace levada {

/// Raise it with every change of what ranks send each other or share: frames, the control memory, a plan's order.
inline constexpr std::uint32_t protocol_number = 3;

using Greeting = std::array<std::byte, 64>;
/// The part of a greeting that is the medium's.
using GreetingRest = std::array<std::byte, 32>;
/// The bytes before it.
inline constexpr std::size_t greeting_head_bytes = sizeof(Greeting) - sizeof(GreetingRest);

/// The Levada that a rank runs. Ranks of one job run the same.
struct Release {
  std::uint32_t protocol = 0;
  std::string name;

  bool operator==(const Release&) const = default;
};
Release own_release();

/// Returns the greeting of this process, or of one that runs `release`.
Greeting greeting(const GreetingRest& rest, const Release& release = own_release());
/// Returns the release of whoever sent `bytes`, or nothing if they are no greeting. They may be any.
std::optional<Release> release_of(ByteView bytes);
GreetingRest rest_of(const Greeting& greeting);

/// "host1 runs Levada 0.2.0, but host0 runs 0.1.0; install ...": one sentence, the same on both.
std::string describe_mismatch(std::string_view one, const Release& of_one, std::string_view other,
                              const Release& of_other);

/// Returns the greeting of a rank of a group, whose rest is as much of its host's name as fits.
Greeting group_greeting(std::string_view host);
/// Throws EngineError, the same on all ranks, unless all the greetings of a group, by rank, are of one release.
void check_greetings(std::span<const Greeting> greetings);

}  // namespace levada
