#include "levada/engine/arena.h"

#include <algorithm>

#include "levada/base/assert.h"
namespace levada {
Arena::Arena(std::uint64_t capacity, std::uint32_t max_slots)
    : capacity_(capacity / page_bytes * page_bytes), max_slots_(max_slots) {
  free_.add({0, capacity_});
}

std::optional<Arena::Place> Arena::find_place(std::uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const std::uint64_t size = block_size(bytes);
  if (const auto& stack = stacks_[size_class_of(size).index]; !stack.empty()) {
    const std::uint32_t slot = stack.back();
    const Slot& entry = slots_[slot];
    const std::uint64_t unbacked = size - std::min(size, entry.size);
    return Place{entry.offset, std::max(size, entry.size), entry.reserved, unbacked, slot};
  }
  const auto place = has_slot() ? find_unused(size) : std::nullopt;
  const bool fits = place && resident() + place->unbacked <= std::max(max_used_, used_ + size);
  if (stacked_ == 0 || fits || (place && place->unbacked == 0)) return place;
  coalesce();
  return has_slot() ? find_unused(size) : std::nullopt;
}

std::optional<Arena::Place> Arena::find_unused(std::uint64_t size) const {
  // A block that takes a large part of all memory reserves only its size, as does one whose size class does not fit.
  std::uint64_t reserved = size > capacity_ / 4 ? size : size_class_of(size).bytes;
  auto offset = free_.find(reserved);
  if (!offset && reserved != size) offset = free_.find(reserved = size);
  if (!offset) return std::nullopt;
  // Memory that the block reserves beyond its size must not be resident, because it would not be counted anywhere.
  if (const auto beyond = resident_.within({*offset + size, *offset + reserved}); !beyond.empty()) {
    size = beyond.back().end - *offset;
  }
  const Interval block{*offset, *offset + size};
  const std::uint64_t unbacked = resident_.contains(block) ? 0 : total_size(resident_.missing(block));
  return Place{*offset, size, reserved, unbacked, std::nullopt};
}

Arena::Allocation Arena::allocate(const Place& place) {
  const std::uint32_t slot = place.slot ? *place.slot : split(place);
  if (place.slot) {
    stacks_[slots_[slot].size_class].pop_back();
    --stacked_;
  }
  use(slots_[slot], place.size);
  Allocation allocation{slot, {place.offset, place.offset + place.size}, {}};
  if (place.unbacked > 0) {
    allocation.unbacked = resident_.missing(allocation.block);
    resident_.add(allocation.block);
  }
  LEVADA_ASSERT(resident_.contains(allocation.block), "a block in use is resident");
  LEVADA_ASSERT(used_ <= resident(), "used memory does not exceed resident memory");
  return allocation;
}

std::uint32_t Arena::unused_slot() {
  if (unused_slots_.empty()) {
    slots_.emplace_back();
    return static_cast<std::uint32_t>(slots_.size() - 1);
  }
  const std::uint32_t slot = unused_slots_.back();
  unused_slots_.pop_back();
  return slot;
}

std::uint32_t Arena::split(const Place& place) {
  const std::uint32_t slot = unused_slot();
  free_.remove({place.offset, place.offset + place.reserved});
  const std::size_t first_page = place.offset / page_bytes;
  if (slot_at_.size() <= first_page) slot_at_.resize(std::max(first_page + 1, 2 * slot_at_.size()));
  slot_at_[first_page] = slot;
  const SizeClass size_class = size_class_of(place.size);
  const bool has_class = size_class.bytes == place.reserved;
  slots_[slot] = {
      .offset = place.offset, .reserved = place.reserved, .size_class = has_class ? size_class.index : no_class};
  return slot;
}

void Arena::free_unpopulated(const Allocation& allocation) {
  for (const Interval part : allocation.unbacked) resident_.remove(part);
  Slot& entry = slots_[allocation.slot];
  entry.used = false;
  used_ -= entry.size;
  forget(allocation.slot);
}

void Arena::forget(std::uint32_t slot) {
  const Slot& entry = slots_[slot];
  LEVADA_ASSERT(!entry.used, "only a free block is forgotten");
  free_.add({entry.offset, entry.offset + entry.reserved});
  unused_slots_.push_back(slot);
}

void Arena::coalesce() {
  for (auto& stack : stacks_) {
    for (const std::uint32_t slot : stack) forget(slot);
    stack.clear();
  }
  stacked_ = 0;
}

Interval Arena::block(std::uint32_t slot) const {
  const Slot& entry = slots_[slot];
  return {entry.offset, entry.offset + entry.size};
}

std::vector<Interval> Arena::evict_excess() {
  return resident() > max_resident() ? evict(resident() - max_resident()) : std::vector<Interval>();
}

std::vector<Interval> Arena::evict_all() {
  max_used_ = used_;
  return evict(capacity_);
}

// Evicts from the top, because blocks are allocated from the bottom.
std::vector<Interval> Arena::evict(std::uint64_t bytes) {
  coalesce();
  std::vector<Interval> evicted;
  const auto free = free_.all();
  for (auto range = free.rbegin(); range != free.rend() && bytes > 0; ++range) {
    const auto parts = resident_.within(*range);
    for (auto part = parts.rbegin(); part != parts.rend() && bytes > 0; ++part) {
      const std::uint64_t size = std::min(part->size(), bytes);
      evicted.push_back({part->end - size, part->end});
      bytes -= size;
    }
  }
  for (const Interval interval : evicted) {
    free_.remove(interval);
    resident_.remove(interval);
  }
  return evicted;
}

void Arena::put_back(Interval evicted, bool resident) {
  free_.add(evicted);
  if (resident) resident_.add(evicted);
}

}  // namespace levada
