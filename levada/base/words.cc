#include "levada/base/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levada/base/error.h"

namespace levada {

void refuse_word(std::string_view what, std::string_view text, std::span<const std::string_view> words) {
  throw InvalidArgument(fmt::format("{} is {:.40}; it must be {} or {}", what, text,
                                    fmt::join(words.first(words.size() - 1), ", "), words.back()));
}

}  // namespace levada
