// One line of a .jsonl file: is it an object with a text, and where does the text begin?
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace levada {

/// Bytes that must be readable behind a line given to JsonlChecker::text().
inline constexpr std::size_t line_padding = 64;

/// A line that cannot be used; what() says why, without file and line number.
class BadLine : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Checks lines, keeping its scratch memory between them. One thread at a time.
class JsonlChecker {
 public:
  explicit JsonlChecker(std::string text_field);
  ~JsonlChecker();

  /// Checks that `line`, without its newline, is a JSON object (RFC 8259) with exactly one string of the field's name,
  /// and gives the raw text from behind its opening quote to the end of the line. Throws BadLine.
  std::string_view text(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether there is nothing but white space in the line.
bool is_blank(std::string_view line);

}  // namespace levada
