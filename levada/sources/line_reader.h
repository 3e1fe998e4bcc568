// A file a line at a time, for a pass over all of it.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "levada/sources/file.h"

namespace levada {

/// A line without its newline. `text` is empty where the line is longer than allowed.
struct Line {
  std::uint64_t number = 0;          ///< from 1
  std::uint64_t begin = 0, end = 0;  ///< in the file, the newline included; of one too long pass_over() finds the end
  std::string_view text;             ///< valid until the next line is asked for; `padding` bytes behind it can be read
  bool too_long = false;
};

/// Reads a file from its start to its end in large pieces. Borrows the file.
class LineReader {
 public:
  /// `on_bytes` sees all bytes in order, once, as they are read.
  LineReader(const File& file, std::uint64_t line_limit, std::size_t padding,
             std::function<void(std::string_view)> on_bytes);

  /// Empty at the end of the file; what stands behind the last newline is a line. Of a line that is too long it has
  /// read hardly more than the limit: pass_over() that line before the next. Throws SourceError.
  std::optional<Line> next();
  /// Reads to the end of a line that is too long. Throws SourceError.
  void pass_over(Line& line);

 private:
  bool read_more();
  Line cut_line(std::size_t length, std::size_t newline);
  Line too_long();

  const File& file_;
  std::uint64_t limit_;
  std::size_t padding_;
  std::function<void(std::string_view)> on_bytes_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, held_ = 0;
  std::uint64_t offset_ = 0;  ///< of buffer_[at_]
  std::uint64_t number_ = 0;
};

}  // namespace levada
