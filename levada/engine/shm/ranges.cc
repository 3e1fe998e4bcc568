#include "levada/engine/shm/ranges.h"

#include <algorithm>

namespace levada::shm {

void Ranges::add(Range range) {
  if (range.begin >= range.end) return;
  auto next = end_of_.upper_bound(range.begin);
  if (next != end_of_.begin() && std::prev(next)->second >= range.begin) --next;
  while (next != end_of_.end() && next->first <= range.end) {
    range.begin = std::min(range.begin, next->first);
    range.end = std::max(range.end, next->second);
    total_ -= next->second - next->first;
    next = end_of_.erase(next);
  }
  end_of_.emplace_hint(next, range.begin, range.end);
  total_ += range.size();
}

void Ranges::remove(Range range) {
  for (const Range part : within(range)) {
    const auto at = std::prev(end_of_.upper_bound(part.begin));
    const Range whole{at->first, at->second};
    end_of_.erase(at);
    if (whole.begin < part.begin) end_of_.emplace(whole.begin, part.begin);
    if (part.end < whole.end) end_of_.emplace(part.end, whole.end);
    total_ -= part.size();
  }
}

bool Ranges::contains(Range range) const {
  const auto next = end_of_.upper_bound(range.begin);
  return next != end_of_.begin() && std::prev(next)->second >= range.end;
}

std::vector<Range> Ranges::within(Range range) const {
  std::vector<Range> parts;
  auto at = end_of_.upper_bound(range.begin);
  if (at != end_of_.begin()) --at;
  for (; at != end_of_.end() && at->first < range.end; ++at) {
    const Range part{std::max(at->first, range.begin), std::min(at->second, range.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

std::vector<Range> Ranges::missing(Range range) const {
  std::vector<Range> parts;
  for (const Range part : within(range)) {
    if (range.begin < part.begin) parts.push_back({range.begin, part.begin});
    range.begin = part.end;
  }
  if (range.begin < range.end) parts.push_back(range);
  return parts;
}

std::optional<std::uint64_t> Ranges::find(std::uint64_t size) const {
  for (const auto& [begin, end] : end_of_) {
    if (end - begin >= size) return begin;
  }
  return std::nullopt;
}

std::vector<Range> Ranges::all() const {
  std::vector<Range> ranges;
  for (const auto& [begin, end] : end_of_) ranges.push_back({begin, end});
  return ranges;
}

}  // namespace levada::shm
