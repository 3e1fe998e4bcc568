// Reads the texts of an indexed .jsonl file from any of its cuts on.
#pragma once

#include <span>
#include <string>

#include "levada/sources/file_index.h"
#include "levada/sources/window.h"

namespace levada {

/// Where a reader of documents' tokens stands. It looks only at what it needs to find the texts: that the lines are
/// good JSON, the index pass has seen; if the bytes have changed since, it throws SourceError or gives other tokens, no
/// more. Borrows everything.
class JsonlCursor {
 public:
  /// At the start of a line.
  JsonlCursor(const File& file, const std::string& text_field, std::span<const ByteRange> skipped, Window window)
      : file_(file), text_field_(text_field), skipped_(skipped), window_(window) {}
  /// At a token, where `window` begins at place.offset.
  JsonlCursor(const File& file, const std::string& text_field, std::span<const ByteRange> skipped, Window window,
              TextPlace place)
      : JsonlCursor(file, text_field, skipped, window) {
    skip_ = place.skip;
    where_ = Where::text;
  }

  /// Goes on to the next token, perhaps of the next document, and says where it is. Throws at the end of the file.
  TextPlace locate();
  /// Whether the token written last ended a document.
  bool at_end() const { return where_ == Where::line_rest; }
  /// How far in the file it has read.
  std::uint64_t offset() const { return window_.offset(); }
  /// Writes `count` tokens.
  void write(std::int64_t count, TokenWriter& to);

 private:
  enum class Where : std::uint8_t { line_start, text, line_rest };

  [[noreturn]] void fail(std::string_view what) const;
  void need();
  char peek();
  void expect(char wanted);
  void write_stretch(std::size_t wanted, TokenWriter& to);
  void write_piece(std::size_t wanted, TokenWriter& to);
  void find_text();
  void find_field();
  void pass_line_rest();
  bool pass_bad_lines();
  void pass_byte_order_mark();
  void pass_space();
  void pass_value();
  bool pass_string(std::string_view equal_to);

  const File& file_;
  const std::string& text_field_;
  std::span<const ByteRange> skipped_;
  Window window_;
  Where where_ = Where::line_start;
  unsigned skip_ = 0;  ///< bytes already written of the escape at hand
};

}  // namespace levada
