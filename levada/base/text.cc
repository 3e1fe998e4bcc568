#include "levada/base/text.h"

#include <fmt/format.h>

#include <cstdint>

#include "levada/base/urls.h"

namespace levada {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  ///< 0: the text does not begin with a valid UTF-8 character
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const auto lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes > text.size()) return {};
  char32_t code = lead & (0x7fU >> bytes);
  for (std::size_t at = 1; at < bytes; ++at) {
    if ((byte(at) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(at) & 0x3fU);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (code < least[bytes] || is_surrogate || code > 0x10ffff) return {};
  return {code, bytes};
}

bool is_safe(char32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  const bool separates_lines = code == 0x2028 || code == 0x2029;
  const bool turns = code == 0x200e || code == 0x200f || code == 0x061c || (code >= 0x202a && code <= 0x202e) ||
                     (code >= 0x2066 && code <= 0x2069);
  return !separates_lines && !turns;
}

void put_escaped(std::string& to, char32_t code) {
  switch (code) {
    case '\n': to += "\\n"; break;
    case '\r': to += "\\r"; break;
    case '\t': to += "\\t"; break;
    default:
      const auto number = static_cast<std::uint32_t>(code);
      to += number < 0x100 ? fmt::format("\\x{:02x}", number) : fmt::format("\\u{:04x}", number);
  }
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes == 0) {
      put_escaped(shown, static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
      continue;
    }
    if (is_safe(code) || (bytes == 1 && kept.find(text.front()) != kept.npos)) shown += text.substr(0, bytes);
    else put_escaped(shown, code);
    text.remove_prefix(bytes);
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(shown_url(text), "");
}

std::string printable_lines(std::string_view text) {
  return escaped(shown_url(text), "\n\t");
}

}  // namespace levada
