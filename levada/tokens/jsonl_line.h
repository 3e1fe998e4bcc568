// One line of a .jsonl file.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace levada {

/// Bytes that must be readable behind a line given to JsonlParser::text().
inline constexpr std::size_t line_padding = 64;

/// A line was rejected. what() is the reason, without file and line number, and remedy() what to do with the file.
class BadLine : public std::runtime_error {
 public:
  explicit BadLine(const std::string& reason, std::string remedy = "mend the file")
      : std::runtime_error(reason), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

/// Keeps its scratch memory from line to line. One thread at a time.
class JsonlParser {
 public:
  /// `text_field`: "a.b" names the field b of the object in the field a, too. `lists`: the field is a list and its JSON
  /// the text; else it is a string.
  explicit JsonlParser(std::string text_field, bool lists = false);
  ~JsonlParser();

  /// Checks that `line`, without its newline, is a JSON object (RFC 8259) with exactly one string, or list, of the
  /// field's name, and returns it as UTF-8, valid until the next call. Accepts a byte order mark before the object, and
  /// in other fields also what Python's json writes: NaN, Infinity and unpaired surrogates. Throws BadLine; SourceError
  /// if memory is short.
  std::string_view text(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns whether the line consists of white space alone, perhaps after a byte order mark.
bool is_blank(std::string_view line);

}  // namespace levada
