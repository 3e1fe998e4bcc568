// Validates UTF-8 that may arrive in pieces.
#pragma once

#include <cstddef>
#include <string_view>

namespace levada {

bool is_utf8(std::string_view text);
/// Returns the length of `text` without an incomplete character at its end.
std::size_t whole_characters(std::string_view text);
/// Returns the position of the first invalid byte of `text`, which must not be valid UTF-8.
std::size_t first_bad_byte(std::string_view text);

}  // namespace levada
