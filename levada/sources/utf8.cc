#include "levada/sources/utf8.h"

#include <simdjson.h>

#include <algorithm>

namespace levada {
namespace {

/// Returns the number of bytes at the end of `text` that begin a character but do not complete it.
std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte >= 0xc0) {
      const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return length > back ? back : 0;
    }
    if (byte < 0x80) return 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  return simdjson::validate_utf8(text);
}

std::size_t whole_characters(std::string_view text) {
  return text.size() - unfinished_bytes(text);
}

std::size_t first_bad_byte(std::string_view text) {
  // Bisects while the rest is long, then advances by single characters.
  std::size_t good = 0;
  for (std::size_t bad = text.size(); bad - good > 8;) {
    const auto middle = good + (bad - good) / 2;
    const auto whole = good + whole_characters(text.substr(good, middle - good));
    if (whole > good && is_utf8(text.substr(good, whole - good))) good = whole;
    else bad = middle;
  }
  std::size_t length = 1;
  while (good < text.size() && length <= 4) {
    if (!is_utf8(text.substr(good, length))) {
      ++length;
      continue;
    }
    good += length;
    length = 1;
  }
  return good;
}

}  // namespace levada
