// The inside of JSON strings: pieces, for what reads a text from its middle; and long stretches at once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace levada {

/// What stands first in the raw bytes of a JSON string.
struct StringPiece {
  enum Kind : std::uint8_t {
    plain,       ///< `raw` bytes that mean themselves
    escape,      ///< an escape of `raw` bytes for `decoded_size` bytes of UTF-8
    end,         ///< the closing quote
    incomplete,  ///< more bytes are needed to tell
    half_pair,   ///< an escape of `raw` bytes for half of a surrogate pair: JSON, but no UTF-8
    invalid,     ///< a backslash that begins no escape
  };
  Kind kind = incomplete;
  std::uint8_t decoded_size = 0;
  std::array<char, 4> decoded{};
  std::size_t raw = 0;

  std::string_view text() const { return {decoded.data(), decoded_size}; }
};

/// The longest escape: a surrogate pair.
inline constexpr std::size_t longest_escape = 12;
/// Bytes that must be readable, whatever they are, behind a `raw` given to count_stretch() and decode_stretch(), and
/// writable behind decode_stretch()'s `to`.
inline constexpr std::size_t stretch_padding = 64;

/// The first piece of `raw`, which begins inside a string and may go on beyond its end. Pure.
StringPiece next_piece(std::string_view raw);

/// Part of a string: so many raw bytes stand for so many bytes of UTF-8.
struct Stretch {
  std::size_t raw = 0, decoded = 0;
};

/// A stretch of plain bytes and escapes of two at the front of `raw`, which ends before its closing quote; nearly as
/// long as it can be while it stands for at most `most` bytes. Empty where another piece comes first, or too much.
Stretch count_stretch(std::string_view raw, std::size_t most);

/// Decodes plain bytes and escapes of two from the front of `raw` to `to`, until another piece comes, `raw` ends or
/// `most` bytes are written.
Stretch decode_stretch(std::string_view raw, char* to, std::size_t most);

}  // namespace levada
