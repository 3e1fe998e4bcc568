// Text that has to fit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace levada {

/// The beginning of a UTF-8 text, at most so many bytes, that ends with a whole character.
constexpr std::string_view cut_text(std::string_view text, std::size_t most) {
  std::size_t length = std::min(text.size(), most);
  if (length < text.size()) {
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  }
  return text.substr(0, length);
}

}  // namespace levada
