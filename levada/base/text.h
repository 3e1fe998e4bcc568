// Fits text into length limits and makes it safe for terminals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace levada {

/// Returns the longest prefix of a UTF-8 text with at most `max_bytes` bytes that does not split a character.
constexpr std::string_view cut_text(std::string_view text, std::size_t max_bytes) {
  std::size_t length = std::min(text.size(), max_bytes);
  if (length < text.size()) {
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  }
  return text.substr(0, length);
}

/// Returns the number of characters in a UTF-8 text.
constexpr std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

/// Returns shown_url(text) (urls.h) for one line of a terminal, in UTF-8: escapes control characters, line separators,
/// marks that change the direction of writing, and bytes that are not UTF-8 ("\n", "\x1b", "\u202e", "\xff").
std::string printable(std::string_view text);
/// Like printable(), but keeps newlines and tabs.
std::string printable_lines(std::string_view text);

}  // namespace levada
