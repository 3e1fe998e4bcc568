#include "levada/sources/line_reader.h"

#include <algorithm>
#include <cstring>

namespace levada {
namespace {

// Large against the cost of a call, small enough that a piece is still in the second-level cache when it is parsed.
constexpr std::size_t piece_bytes = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(const File& file, std::uint64_t line_limit, std::size_t padding,
                       std::function<void(std::string_view)> on_bytes)
    : file_(file), limit_(line_limit), padding_(padding), on_bytes_(std::move(on_bytes)), buffer_(piece_bytes) {}

bool LineReader::read_more() {
  const auto kept = held_ - at_;
  std::memmove(buffer_.data(), buffer_.data() + at_, kept);
  at_ = 0;
  held_ = kept;
  if (kept + padding_ + piece_bytes / 2 > buffer_.size()) buffer_.resize(2 * buffer_.size());
  const auto room = std::span(buffer_).subspan(kept, buffer_.size() - padding_ - kept);
  const auto got = file_.read(offset_ + kept, room);
  on_bytes_({room.data(), got});
  held_ += got;
  return got > 0;
}

Line LineReader::cut_line(std::size_t length, std::size_t newline) {
  if (length > limit_) return too_long();
  Line line{.number = ++number_, .begin = offset_, .end = offset_ + length + newline, .text = {}};
  line.text = {buffer_.data() + at_, length};
  at_ += length + newline;
  offset_ = line.end;
  return line;
}

Line LineReader::too_long() {
  return {.number = ++number_, .begin = offset_, .end = 0, .text = {}, .too_long = true};
}

std::optional<Line> LineReader::next() {
  std::size_t searched = 0;
  while (true) {
    const auto* begin = buffer_.data() + at_;
    const auto held = held_ - at_;
    if (const void* newline = std::memchr(begin + searched, '\n', held - searched)) {
      return cut_line(static_cast<std::size_t>(static_cast<const char*>(newline) - begin), 1);
    }
    if (held > limit_) return too_long();
    searched = held;
    if (!read_more()) {
      if (held_ == at_) return std::nullopt;
      return cut_line(held_ - at_, 0);
    }
  }
}

void LineReader::pass_over(Line& line) {
  while (true) {
    const auto* begin = buffer_.data() + at_;
    const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', held_ - at_));
    const auto passed = newline != nullptr ? static_cast<std::size_t>(newline - begin) + 1 : held_ - at_;
    at_ += passed;
    offset_ += passed;
    if (newline != nullptr || !read_more()) break;
  }
  line.end = offset_;
}

}  // namespace levada
