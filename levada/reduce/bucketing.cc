#include "levada/reduce/bucketing.h"

#include <algorithm>
#include <utility>

namespace levada {

Bucketing::Placement Bucketing::apply(int group, int key, std::uint64_t bytes) {
  if (capacity_ <= 0 || bytes > static_cast<std::uint64_t>(capacity_)) return {.close = {}, .alone = true};
  const auto found = std::ranges::find(open_, key, &Open::key);
  const bool fits = found != open_.end() && bytes <= static_cast<std::uint64_t>(capacity_) - found->bytes;
  if (fits) {
    found->bytes += bytes;
    ++found->inputs;
    return {};
  }
  Placement placement;
  if (found != open_.end()) {
    placement.close = key;
    open_.erase(found);
  }
  open_.push_back({group, key, bytes, 1});
  return placement;
}

void Bucketing::undo(int key, std::uint64_t bytes) {
  const auto found = std::ranges::find(open_, key, &Open::key);
  found->bytes -= bytes;
  if (--found->inputs == 0) open_.erase(found);
}

std::uint64_t Bucketing::open_bytes(int key) const {
  const auto found = std::ranges::find(open_, key, &Open::key);
  return found != open_.end() ? found->bytes : 0;
}

std::vector<int> Bucketing::flush() {
  std::vector<int> keys;
  for (const Open& each : std::exchange(open_, {})) keys.push_back(each.key);
  return keys;
}

std::vector<int> Bucketing::flush_through(int key) {
  const auto found = std::ranges::find(open_, key, &Open::key);
  if (found == open_.end()) return {};
  std::vector<int> keys;
  std::vector<Open> open;
  for (auto each = open_.begin(); each != open_.end(); ++each) {
    if (each <= found && each->group == found->group) keys.push_back(each->key);
    else open.push_back(*each);
  }
  open_ = std::move(open);
  return keys;
}

}  // namespace levada
