#include "levada/base/enum_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levada/base/error.h"

namespace levada {

void throw_unknown_name(std::string_view what, std::string_view text, std::span<const std::string_view> names) {
  throw InvalidArgument(fmt::format("{} is {:.40}; it must be {} or {}", what, text,
                                    fmt::join(names.first(names.size() - 1), ", "), names.back()));
}

}  // namespace levada
