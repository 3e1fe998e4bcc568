// The first 64 bytes that ranks exchange in any join, over any medium. Their layout never changes, so that ranks that
// run different releases of Levada can report the mismatch:
//
// clang-format off
//    0   8  "levada\r\n"
//    8   4  protocol number, little-endian
//   12   4  zero
//   16  16  release, such as "0.2.0", padded with zeros
//   32  32  medium-specific: the host's name in a group; a challenge and a proof on a link within a host
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

/// Must be incremented on every change to the data that ranks send each other or share: frames, the control memory, the
/// order of a plan.
inline constexpr std::uint32_t protocol_number = 3;

using Greeting = std::array<std::byte, 64>;
/// The part of a greeting that depends on the medium.
using GreetingRest = std::array<std::byte, 32>;
/// The size of the part before it.
inline constexpr std::size_t greeting_head_bytes = sizeof(Greeting) - sizeof(GreetingRest);

/// The version of Levada that a rank runs. All ranks of a job run the same one.
struct Release {
  std::uint32_t protocol = 0;
  std::string name;

  bool operator==(const Release&) const = default;
};
Release own_release();

/// Returns the greeting of a process that runs `release`.
Greeting greeting(const GreetingRest& rest, const Release& release = own_release());
/// Returns the release in the greeting `bytes`, or nothing if they are not a greeting. `bytes` are untrusted.
std::optional<Release> release_of(ByteView bytes);
GreetingRest rest_of(const Greeting& greeting);

/// Describes a mismatch in one sentence, which is the same on both sides: "host1 runs Levada 0.2.0, but host0 runs
/// 0.1.0; install ...".
std::string describe_mismatch(std::string_view one, const Release& of_one, std::string_view other,
                              const Release& of_other);

/// Returns the greeting of a rank of a group. Its rest is the name of its host, cut to fit.
Greeting group_greeting(std::string_view host);
/// Throws EngineError, the same on all ranks, unless all greetings of a group, ordered by rank, have the same release.
void check_greetings(std::span<const Greeting> greetings);

}  // namespace levada
