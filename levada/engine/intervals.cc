#include "levada/engine/intervals.h"

#include <algorithm>

namespace levada {

void IntervalSet::add(Interval interval) {
  if (interval.begin >= interval.end) return;
  auto next = end_of_.upper_bound(interval.begin);
  if (next != end_of_.begin() && std::prev(next)->second >= interval.begin) --next;
  while (next != end_of_.end() && next->first <= interval.end) {
    interval.begin = std::min(interval.begin, next->first);
    interval.end = std::max(interval.end, next->second);
    total_ -= next->second - next->first;
    next = end_of_.erase(next);
  }
  end_of_.emplace_hint(next, interval.begin, interval.end);
  total_ += interval.size();
}

void IntervalSet::remove(Interval interval) {
  if (interval.begin >= interval.end) return;
  auto at = end_of_.upper_bound(interval.begin);
  if (at != end_of_.begin() && std::prev(at)->second > interval.begin) --at;
  while (at != end_of_.end() && at->first < interval.end) {
    const Interval whole{at->first, at->second};
    total_ -= std::min(whole.end, interval.end) - std::max(whole.begin, interval.begin);
    if (whole.begin < interval.begin) {
      at->second = interval.begin;
      ++at;
    } else {
      at = end_of_.erase(at);
    }
    if (interval.end < whole.end) end_of_.emplace_hint(at, interval.end, whole.end);
  }
}

bool IntervalSet::contains(Interval interval) const {
  const auto next = end_of_.upper_bound(interval.begin);
  return next != end_of_.begin() && std::prev(next)->second >= interval.end;
}

std::vector<Interval> IntervalSet::within(Interval interval) const {
  std::vector<Interval> parts;
  auto at = end_of_.upper_bound(interval.begin);
  if (at != end_of_.begin()) --at;
  for (; at != end_of_.end() && at->first < interval.end; ++at) {
    const Interval part{std::max(at->first, interval.begin), std::min(at->second, interval.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

std::vector<Interval> IntervalSet::missing(Interval interval) const {
  std::vector<Interval> parts;
  for (const Interval part : within(interval)) {
    if (interval.begin < part.begin) parts.push_back({interval.begin, part.begin});
    interval.begin = part.end;
  }
  if (interval.begin < interval.end) parts.push_back(interval);
  return parts;
}

std::optional<std::uint64_t> IntervalSet::find(std::uint64_t size) const {
  for (const auto& [begin, end] : end_of_) {
    if (end - begin >= size) return begin;
  }
  return std::nullopt;
}

std::vector<Interval> IntervalSet::all() const {
  std::vector<Interval> intervals;
  intervals.reserve(end_of_.size());
  for (const auto& [begin, end] : end_of_) intervals.push_back({begin, end});
  return intervals;
}

std::uint64_t total_size(const std::vector<Interval>& intervals) {
  std::uint64_t total = 0;
  for (const Interval interval : intervals) total += interval.size();
  return total;
}

}  // namespace levada
