// One line of a .jsonl file.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace levada {

/// Bytes after a line passed to JsonlParser::text() that must be readable.
inline constexpr std::size_t line_padding = 64;

/// A rejected line. what() is the reason, without file and line number; remedy() is what to do with the file.
class BadLine : public std::runtime_error {
 public:
  explicit BadLine(const std::string& reason, std::string remedy = "fix the file")
      : std::runtime_error(reason), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

/// Extracts the texts of lines. Reuses its scratch memory for every line. Used by one thread at a time.
class JsonlParser {
 public:
  /// `text_field`: "a.b" also names the field b of the object in the field a. `lists`: the field is a list, and the
  /// text is its JSON; otherwise it is a string.
  explicit JsonlParser(std::string text_field, bool lists = false);
  ~JsonlParser();

  /// Returns the text of `line`, given without its newline, as UTF-8, valid until the next call. The line must be a
  /// JSON object (RFC 8259) with exactly one string, or list, of the field's name. Accepts a byte order mark before the
  /// object, and in other fields also the extensions of Python's json: NaN, Infinity and unpaired surrogates. Throws
  /// BadLine, or SourceError if memory runs out.
  std::string_view text(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns whether the line consists only of white space, optionally after a byte order mark.
bool is_blank(std::string_view line);

}  // namespace levada
