// Splits a stream of bytes into lines.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "levada/tokens/byte_stream.h"

namespace levada {

/// A line without its newline.
struct Line {
  std::uint64_t number = 0;  ///< from 1
  std::string_view text;     ///< valid until the next line; empty if the line is too long
  bool too_long = false;
};

/// Splits a stream into lines, reading it in large pieces. Borrows the stream.
class LineReader {
 public:
  /// At least `padding` bytes after each line are readable; their values are unspecified.
  LineReader(ByteStream& stream, std::uint64_t max_line_bytes, std::size_t padding);

  /// Returns the next line, or nothing at the end of the stream. Text after the last newline is a line. Buffers little
  /// more than `max_line_bytes` of a line that is too long. Throws SourceError.
  std::optional<Line> next();

 private:
  bool read_more();
  Line cut_line(std::size_t length, std::size_t newline);
  Line skip_line();

  ByteStream& stream_;
  std::uint64_t max_line_bytes_;
  std::size_t padding_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, held_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace levada
