// The names of enum members as users write them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace levada {

template <typename E>
struct EnumName {
  std::string_view text;
  E value;
};

/// Throws InvalidArgument: "`what` is `text`; it must be a, b or c".
[[noreturn]] void throw_unknown_name(std::string_view what, std::string_view text,
                                     std::span<const std::string_view> names);

/// Returns the value named `text`. Throws InvalidArgument, which lists `what` and all names, if there is none.
template <typename E, std::size_t N>
E parse_enum(std::string_view what, std::string_view text, const EnumName<E> (&names)[N]) {
  std::vector<std::string_view> known;
  for (const EnumName<E>& name : names) {
    if (name.text == text) return name.value;
    known.push_back(name.text);
  }
  throw_unknown_name(what, text, known);
}

/// Returns the name of `value`, or "unknown" if it has none.
template <typename E, std::size_t N>
std::string_view enum_name(E value, const EnumName<E> (&names)[N]) {
  for (const EnumName<E>& name : names) {
    if (name.value == value) return name.text;
  }
  return "unknown";
}

}  // namespace levada
