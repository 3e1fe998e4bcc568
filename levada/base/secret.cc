#include "levada/base/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "levada/base/error.h"

namespace levada {
namespace {

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    else if (errno != EINTR) {
      throw EngineError(fmt::format("cannot get random numbers from the system (getrandom: {})", std::strerror(errno)));
    }
  }
}

}  // namespace

Secret random_secret() {
  Secret secret;
  fill_randomly(secret);
  return secret;
}

Challenge random_challenge() {
  Challenge challenge;
  fill_randomly(challenge);
  return challenge;
}

Secret derive_secret(const Secret& secret, std::string_view purpose) {
  return blake2s(as_bytes(purpose), secret);
}

Proof prove(const Secret& secret, ByteView message) {
  const Blake2s hash = blake2s(message, secret);
  Proof proof;
  std::ranges::copy(std::span(hash).first<sizeof(Proof)>(), proof.begin());
  return proof;
}

bool is_proven(const Secret& secret, ByteView message, ByteView claimed) {
  const Proof proof = prove(secret, message);
  if (claimed.size() != proof.size()) return false;
  std::byte difference{};
  for (std::size_t i = 0; i < proof.size(); ++i) difference |= proof[i] ^ claimed[i];
  return difference == std::byte{};
}

std::string to_hex(ByteView bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace levada
