// The inside of a JSON string, a piece at a time: what reads a text from its middle.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace levada {

/// What stands first in the raw bytes of a JSON string.
struct StringPiece {
  enum Kind : std::uint8_t {
    plain,       ///< `raw` bytes that mean themselves
    escape,      ///< an escape of `raw` bytes for `decoded_size` bytes of UTF-8
    end,         ///< the closing quote
    incomplete,  ///< more bytes are needed to tell
    invalid,     ///< a backslash that begins no escape, or half of a surrogate pair
  };
  Kind kind = incomplete;
  std::uint8_t decoded_size = 0;
  std::array<char, 4> decoded{};
  std::size_t raw = 0;
};

/// The longest escape: a surrogate pair.
inline constexpr std::size_t longest_escape = 12;

/// What the backslash at the front of `raw` begins. Pure.
StringPiece read_escape(std::string_view raw);

/// The number of bytes before the first quote or backslash.
inline std::size_t plain_length(std::string_view raw) {
  // Vectors of the compiler: 16 bytes a comparison on every architecture that has such registers.
  using Block = std::uint8_t __attribute__((vector_size(16)));
  using Halves = std::uint64_t __attribute__((vector_size(16)));
  static_assert(std::endian::native == std::endian::little);
  std::size_t at = 0;
  for (; at + sizeof(Block) <= raw.size(); at += sizeof(Block)) {
    Block block;
    std::memcpy(&block, raw.data() + at, sizeof block);
    const auto found = (Halves)((block == '"') | (block == '\\'));
    if (found[0] != 0) return at + static_cast<std::size_t>(std::countr_zero(found[0])) / 8;
    if (found[1] != 0) return at + 8 + static_cast<std::size_t>(std::countr_zero(found[1])) / 8;
  }
  while (at < raw.size() && raw[at] != '"' && raw[at] != '\\') ++at;
  return at;
}

/// The first piece of `raw`, which begins inside a string and may go on beyond its end. Pure.
inline StringPiece next_piece(std::string_view raw) {
  if (const auto length = plain_length(raw); length > 0) return {.kind = StringPiece::plain, .raw = length};
  if (raw.empty()) return {.kind = StringPiece::incomplete};
  if (raw.front() == '"') return {.kind = StringPiece::end, .raw = 1};
  return read_escape(raw);
}

}  // namespace levada
