// Colours, where they can be seen and are wanted.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace levada::report {

/// Marks up text with ANSI sequences, or leaves it as it is. A value.
class Style {
 public:
  /// No colours.
  Style() = default;
  explicit Style(bool coloured) : coloured_(coloured) {}
  /// Colours if descriptor `fd` is a terminal and neither NO_COLOR nor TERM=dumb is set; `get` is std::getenv but for
  /// tests.
  static Style of_descriptor(int fd, const std::function<const char*(const char*)>& get);

  bool coloured() const { return coloured_; }
  std::string bold(std::string_view text) const { return marked("1", text); }
  std::string good(std::string_view text) const { return marked("32", text); }
  std::string bad(std::string_view text) const { return marked("31", text); }

 private:
  std::string marked(std::string_view code, std::string_view text) const;

  bool coloured_ = false;
};

}  // namespace levada::report
