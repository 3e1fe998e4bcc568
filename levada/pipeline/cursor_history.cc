#include "levada/pipeline/cursor_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"

namespace levada::pipeline {

void CursorHistory::mark(std::int64_t position, const std::function<Cursor()>& save) {
  const auto begin = Clock::now();
  auto cursor = save();
  const std::lock_guard lock(mutex_);
  drop_old();
  marks_.push_back({position, std::move(cursor)});
  const auto end = Clock::now();
  if (marked_ != Clock::time_point::min()) space_marks(since_, begin - marked_, end - begin);
  since_ = 0;
  marked_ = end;
}

void CursorHistory::drop_old() {
  constexpr std::size_t most = 256;
  const auto keep = keep_from_.load(std::memory_order_relaxed);
  while (marks_.size() > 1 && marks_[1].position <= keep) marks_.pop_front();
  if (marks_.size() < most) return;
  std::deque<Mark> kept;
  for (std::size_t i = 0; i < marks_.size(); i += 2) kept.push_back(std::move(marks_[i]));
  marks_ = std::move(kept);
}

// A mark may cost a part of the time that the items between two of them take.
void CursorHistory::space_marks(std::int64_t items, Duration since, Duration cost) {
  constexpr std::int64_t part = 32, longest = std::int64_t{1} << 20;
  const auto time_for_one = std::max<std::int64_t>(since.count() / std::max<std::int64_t>(items, 1), 1);
  const auto wanted = cost.count() * part / time_for_one;
  every_ = std::clamp<std::int64_t>(wanted, 1, std::min(every_ * 4, longest));
}

CursorHistory::Point CursorHistory::at(std::int64_t position) const {
  const std::lock_guard lock(mutex_);
  const auto behind = std::ranges::upper_bound(marks_, position, {}, &Mark::position);
  if (behind == marks_.begin()) throw InvalidArgument(fmt::format("position {} is no longer remembered", position));
  const auto& mark = *std::prev(behind);
  return {mark.cursor, position - mark.position};
}

}  // namespace levada::pipeline
