#include "levada/reduce/bucketing.h"

#include <algorithm>

namespace levada {

Bucketing::Placement Bucketing::apply(int key, std::uint64_t bytes) {
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
  open_.push_back({key, bytes, 1});
  return placement;
}

void Bucketing::take_back(int key, std::uint64_t bytes) {
  const auto found = std::ranges::find(open_, key, &Open::key);
  found->bytes -= bytes;
  if (--found->inputs == 0) open_.erase(found);
}

std::uint64_t Bucketing::open_bytes(int key) const {
  const auto found = std::ranges::find(open_, key, &Open::key);
  return found != open_.end() ? found->bytes : 0;
}

std::vector<int> Bucketing::flush() {
  return open_.empty() ? std::vector<int>() : flush_through(open_.back().key);
}

std::vector<int> Bucketing::flush_through(int key) {
  const auto found = std::ranges::find(open_, key, &Open::key);
  if (found == open_.end()) return {};
  std::vector<int> keys;
  for (auto each = open_.begin(); each <= found; ++each) keys.push_back(each->key);
  open_.erase(open_.begin(), found + 1);
  return keys;
}

}  // namespace levada
