#include "levada/sources/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "levada/base/error.h"
#include "levada/sources/json_string.h"

namespace levada {
namespace {

// Enough to make a call cheap against the copy, little enough to stay in a second-level cache.
constexpr std::size_t piece_bytes = std::size_t{256} << 10;

}  // namespace

Window::Window(const File& file, std::uint64_t begin, std::uint64_t likely_end, std::uint64_t file_end,
               std::vector<char>& buffer, ReadStats& stats)
    : file_(file),
      buffer_(buffer),
      stats_(stats),
      offset_(begin),
      likely_end_(std::min(likely_end, file_end)),
      file_end_(file_end) {
  buffer_.resize(piece_bytes + window_padding);
}

void Window::jump(std::uint64_t offset) {
  const auto held = std::min<std::uint64_t>(offset - offset_, held_ - at_);
  at_ += held;
  offset_ = offset;
}

bool Window::more() {
  const auto kept = held_ - at_;
  const auto from = offset_ + kept;
  if (from >= file_end_) return false;
  std::memmove(buffer_.data(), buffer_.data() + at_, kept);
  // Beyond what was expected lies one label: a byte, or an escape.
  const auto wanted =
      from < likely_end_ ? likely_end_ - from : std::min<std::uint64_t>(longest_escape - 1, file_end_ - from);
  const auto room = std::span(buffer_).first(piece_bytes).subspan(kept, std::min(wanted, piece_bytes - kept));
  const auto got = read_fully(file_, from, room);
  stats_.bytes_read += got;
  at_ = 0;
  held_ = kept + got;
  if (got < room.size()) {
    throw SourceError(fmt::format("{} ends at byte {}, {} bytes short: it was cut off while it was being read",
                                  file_.path(), from + got, file_end_ - from - got));
  }
  return true;
}

}  // namespace levada
