// Text that comes in pieces, or is none.
#pragma once

#include <cstddef>
#include <string_view>

namespace levada {

bool is_utf8(std::string_view text);
/// How much of `text` is left without a character at its end that may go on behind it.
std::size_t whole_characters(std::string_view text);
/// Where text that is not UTF-8 stops being so.
std::size_t first_bad_byte(std::string_view text);

}  // namespace levada
