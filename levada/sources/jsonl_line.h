// One line of a .jsonl file: is it an object with a text, and where does the text begin?
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace levada {

/// What may stand at the start of a line, where a file that begins with it was joined to another, and means nothing.
inline constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// Bytes that must be readable behind a line given to JsonlChecker::text().
inline constexpr std::size_t line_padding = 64;

/// What BadLine says of a wrong escape, which stands at the front of `raw`.
std::string wrong_escape(std::string_view raw);

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
  /// and gives what stands between its quotes. Whether the escapes in it are right, is left to who walks over them. A
  /// byte order mark may stand before the object; in other fields also what Python's json writes: NaN, Infinity and
  /// halves of surrogate pairs. Throws BadLine; SourceError if memory is short.
  std::string_view text(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether there is nothing but white space in the line, perhaps behind a byte order mark.
bool is_blank(std::string_view line);

}  // namespace levada
