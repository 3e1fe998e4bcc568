// Text that has to fit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace levada {

/// The beginning of a UTF-8 text, at most so many bytes, that ends with a whole character.
constexpr std::string_view cut_text(std::string_view text, std::size_t max_bytes) {
  std::size_t length = std::min(text.size(), max_bytes);
  if (length < text.size()) {
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  }
  return text.substr(0, length);
}

/// How many characters a UTF-8 text has.
constexpr std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

/// Returns shown_url(text) (urls.h) for one line of a terminal, in UTF-8: control characters, line separators, marks
/// that change the direction of writing and bytes that are not UTF-8 are escaped ("\n", "\x1b", "\u202e", "\xff").
std::string printable(std::string_view text);
/// The same, but keeps newlines and tabs.
std::string printable_lines(std::string_view text);

}  // namespace levada
