#include "levada/sources/json_string.h"

#include <optional>

namespace levada {
namespace {

constexpr StringPiece invalid{.kind = StringPiece::invalid};

char simple_escape(char letter) {
  switch (letter) {
    case '"': return '"';
    case '\\': return '\\';
    case '/': return '/';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return '\0';
  }
}

std::optional<std::uint32_t> four_digits(std::string_view digits) {
  std::uint32_t value = 0;
  for (const char digit : digits.substr(0, 4)) {
    value <<= 4;
    if (digit >= '0' && digit <= '9') value += static_cast<std::uint32_t>(digit - '0');
    else if (digit >= 'a' && digit <= 'f') value += static_cast<std::uint32_t>(digit - 'a' + 10);
    else if (digit >= 'A' && digit <= 'F') value += static_cast<std::uint32_t>(digit - 'A' + 10);
    else return std::nullopt;
  }
  return value;
}

StringPiece encoded(std::uint32_t code, std::size_t raw) {
  StringPiece piece{.kind = StringPiece::escape, .raw = raw};
  const auto put = [&](std::uint32_t byte) { piece.decoded[piece.decoded_size++] = static_cast<char>(byte); };
  const auto follow = [&](unsigned shift) { put(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | (code >> 6)), follow(0);
  } else if (code < 0x10000) {
    put(0xe0 | (code >> 12)), follow(6), follow(0);
  } else {
    put(0xf0 | (code >> 18)), follow(12), follow(6), follow(0);
  }
  return piece;
}

}  // namespace

StringPiece read_escape(std::string_view raw) {
  if (raw.size() < 2) return {.kind = StringPiece::incomplete};
  if (raw[1] != 'u') {
    const char letter = simple_escape(raw[1]);
    if (letter == '\0') return invalid;
    return {.kind = StringPiece::escape, .decoded_size = 1, .decoded = {letter}, .raw = 2};
  }
  if (raw.size() < 6) return {.kind = StringPiece::incomplete};
  const auto first = four_digits(raw.substr(2));
  if (!first || (*first >= 0xdc00 && *first < 0xe000)) return invalid;
  if (*first < 0xd800 || *first >= 0xe000) return encoded(*first, 6);
  if (raw.size() < longest_escape) return {.kind = StringPiece::incomplete};
  const auto second = four_digits(raw.substr(8));
  if (raw[6] != '\\' || raw[7] != 'u' || !second || *second < 0xdc00 || *second >= 0xe000) return invalid;
  return encoded(0x10000 + ((*first - 0xd800) << 10) + (*second - 0xdc00), longest_escape);
}

}  // namespace levada
