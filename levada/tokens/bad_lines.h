// Lines of text that cannot be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levada {

/// The skipped lines of a text, or rows of a table.
struct BadLines {
  static constexpr std::size_t max_first = 10;

  std::int64_t count = 0;
  std::vector<std::int64_t> first;  ///< line numbers of the first max_first, from 1

  void add(std::int64_t number);
};

/// Returns what counts for an empty text that is skipped: one line.
BadLines whole_text();

/// The skipped lines of several texts.
struct BadPlaces {
  std::int64_t count = 0;
  std::vector<std::string> first;  ///< the first BadLines::max_first: "a.jsonl:17"

  void add(std::string_view path, const BadLines& lines);
  void add(const BadPlaces& others);
};

}  // namespace levada
