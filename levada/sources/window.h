// A file read forward from one place, with little more memory than is looked at.
#pragma once

#include <string_view>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/source.h"

namespace levada {

/// Bytes that can be read, whatever they are, behind what a window shows.
inline constexpr std::size_t window_padding = 64;

/// Bytes of a file, read ahead as far as the caller expects to need them and, if that was too short, a few at a time.
/// Borrows the file, the buffer and the counters.
class Window {
 public:
  /// Begins at `begin`; reads up to `likely_end` in large pieces. `file_end`: the file's size when it was indexed.
  Window(const File& file, std::uint64_t begin, std::uint64_t likely_end, std::uint64_t file_end,
         std::vector<char>& buffer, ReadStats& stats);

  /// The bytes at hand, from offset() on. Valid until more().
  std::string_view here() const { return {buffer_.data() + at_, held_ - at_}; }
  std::uint64_t offset() const { return offset_; }
  /// Goes on by `count` bytes of here().
  void advance(std::size_t count) {
    at_ += count;
    offset_ += count;
  }
  /// Goes on to `offset`, which lies ahead.
  void jump(std::uint64_t offset);
  /// Reads more behind here(), of which the caller leaves no more than an escape standing; false at the file's end.
  /// Throws SourceError if the file now ends early.
  bool more();

 private:
  const File& file_;
  std::vector<char>& buffer_;
  ReadStats& stats_;
  std::uint64_t offset_, likely_end_, file_end_;
  std::size_t at_ = 0, held_ = 0;
};

}  // namespace levada
