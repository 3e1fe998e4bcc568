// Text for a terminal: colors, tables and labeled facts.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/plan/text.h"

namespace levada::report {

/// Marks up text with ANSI sequences if colors are on. A value.
class Style {
 public:
  /// No colors.
  Style() = default;
  explicit Style(bool colored) : colored_(colored) {}
  /// Returns colors if descriptor `fd` is a terminal and neither NO_COLOR nor TERM=dumb is set. `get` is std::getenv,
  /// except in tests.
  static Style of_descriptor(int fd, const std::function<const char*(const char*)>& get);

  bool colored() const { return colored_; }
  std::string bold(std::string_view text) const { return marked("1", text); }
  std::string good(std::string_view text) const { return marked("32", text); }
  std::string bad(std::string_view text) const { return marked("31", text); }

 private:
  std::string marked(std::string_view code, std::string_view text) const;

  bool colored_ = false;
};

/// Returns the table with its header in bold; every line begins with `indent` and ends with a newline.
std::string to_string(const TextTable& table, const std::vector<bool>& right, const Style& style,
                      const std::string& indent = "");

/// Returns a line such as "  data   1,024 tokens in 8 samples", with the name in bold and padded to `width`.
std::string fact(const Style& style, std::string_view name, std::size_t width, std::string_view value);

/// Returns a bar of length `share` * `columns`, in eighths of a column. A small share that is not zero is drawn as a
/// sliver.
std::string bar_of(double share, std::size_t columns);

}  // namespace levada::report
