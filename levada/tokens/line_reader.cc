#include "levada/tokens/line_reader.h"

#include <cstring>

namespace levada {
namespace {

// Large relative to the cost of a call, small enough that a piece is still in the second-level cache when it is parsed.
constexpr std::size_t line_piece_bytes = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(ByteStream& stream, std::uint64_t max_bytes, std::size_t padding)
    : stream_(stream), max_line_bytes_(max_bytes), padding_(padding), buffer_(line_piece_bytes) {}

bool LineReader::read_more() {
  const auto kept = held_ - at_;
  std::memmove(buffer_.data(), buffer_.data() + at_, kept);
  at_ = 0;
  held_ = kept;
  if (kept + padding_ + line_piece_bytes / 2 > buffer_.size()) buffer_.resize(2 * buffer_.size());
  const auto got = stream_.read(std::span(buffer_).subspan(kept, buffer_.size() - padding_ - kept));
  held_ += got;
  // A parser's error for a truncated last line must not depend on earlier buffer content.
  std::memset(buffer_.data() + held_, 0, padding_);
  return got > 0;
}

Line LineReader::cut_line(std::size_t length, std::size_t newline) {
  Line line{.number = ++number_, .text = {buffer_.data() + at_, length}, .too_long = length > max_line_bytes_};
  if (line.too_long) line.text = {};
  at_ += length + newline;
  return line;
}

Line LineReader::skip_line() {
  while (true) {
    const auto* begin = buffer_.data() + at_;
    const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', held_ - at_));
    at_ = newline != nullptr ? static_cast<std::size_t>(newline - buffer_.data()) + 1 : held_;
    if (newline != nullptr || !read_more()) return {.number = ++number_, .text = {}, .too_long = true};
  }
}

std::optional<Line> LineReader::next() {
  std::size_t searched = 0;
  while (true) {
    const auto* begin = buffer_.data() + at_;
    const auto held = held_ - at_;
    if (const void* newline = std::memchr(begin + searched, '\n', held - searched)) {
      return cut_line(static_cast<std::size_t>(static_cast<const char*>(newline) - begin), 1);
    }
    if (held > max_line_bytes_) return skip_line();
    searched = held;
    if (!read_more()) {
      if (held_ == at_) return std::nullopt;
      return cut_line(held_ - at_, 0);
    }
  }
}

}  // namespace levada
