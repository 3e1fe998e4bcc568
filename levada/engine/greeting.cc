#include "levada/engine/greeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::string_view magic = "levada\r\n";
constexpr std::size_t protocol_at = 8, release_at = 16, release_bytes = 16;

/// Returns the text in a field that is padded with zeros.
std::string text_in(ByteView field) {
  const std::string_view text = as_text(field);
  return std::string(text.substr(0, text.find('\0')));
}

void put_text(std::span<std::byte> field, std::string_view text) {
  std::ranges::copy(as_bytes(text.substr(0, field.size())), field.begin());  // not payload: a name
}

std::string name_of(const Release& release, const Release& other) {
  const std::string name = printable(release.name);
  return release.name != other.name ? name : fmt::format("{} (protocol {})", name, release.protocol);
}

/// Returns "rank 3 on host host1".
std::string sender_of(std::span<const Greeting> greetings, std::size_t rank) {
  const std::string host = printable(text_in(rest_of(greetings[rank])));
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on host {}", rank, host);
}

}  // namespace

Release own_release() {
  return {protocol_number, LEVADA_VERSION};
}

Greeting greeting(const GreetingRest& rest, const Release& release) {
  Greeting bytes{};
  const std::span all(bytes);
  put_text(all, magic);
  std::memcpy(&bytes[protocol_at], &release.protocol, sizeof release.protocol);  // not payload: a number
  put_text(all.subspan(release_at, release_bytes), release.name);
  std::ranges::copy(rest, bytes.begin() + greeting_head_bytes);  // not payload: a part of the greeting
  return bytes;
}

std::optional<Release> release_of(ByteView bytes) {
  if (bytes.size() != sizeof(Greeting) || as_text(bytes.first(magic.size())) != magic) return {};
  Release release;
  std::memcpy(&release.protocol, &bytes[protocol_at], sizeof release.protocol);  // not payload: a number
  release.name = text_in(bytes.subspan(release_at, release_bytes));
  return release;
}

GreetingRest rest_of(const Greeting& greeting) {
  GreetingRest rest;
  std::copy_n(greeting.begin() + greeting_head_bytes, rest.size(), rest.begin());  // not payload: a part of it
  return rest;
}

std::string describe_mismatch(std::string_view one, const Release& of_one, std::string_view other,
                              const Release& of_other) {
  return fmt::format("{} runs Levada {}, but {} runs {}; install the same release for all ranks of the job", one,
                     name_of(of_one, of_other), other, name_of(of_other, of_one));
}

Greeting group_greeting(std::string_view host) {
  GreetingRest rest{};
  put_text(rest, host);
  return greeting(rest);
}

void check_greetings(std::span<const Greeting> greetings) {
  for (std::size_t rank = 0; rank < greetings.size(); ++rank) {
    const Greeting& each = greetings[rank];
    if (std::memcmp(each.data(), greetings[0].data(), greeting_head_bytes) == 0) continue;
    const auto first = release_of(greetings[0]), other = release_of(each);
    if (first && other) {
      throw EngineError(describe_mismatch(sender_of(greetings, rank), *other, sender_of(greetings, 0), *first));
    }
    throw EngineError(fmt::format("rank {} joins without a greeting of Levada; install the same release for all ranks",
                                  first ? rank : 0));
  }
  if (!greetings.empty() && !release_of(greetings[0])) {
    throw EngineError("the ranks join without a greeting of Levada; install the same release for all of them");
  }
}

}  // namespace levada
