#include "levada/engine/shm/arena.h"

#include <algorithm>
#include <bit>

#include "levada/base/bytes.h"
#include "levada/engine/shm/control.h"

namespace levada::shm {
namespace {

/// Sizes that share a stack: at most an eighth apart. What a block does not use of its addresses takes no memory.
std::uint64_t size_class(std::uint64_t bytes) {
  const std::uint64_t size = align_up(bytes, page_bytes);
  const std::uint64_t step = std::max(page_bytes, std::bit_floor(size) / 8);
  return align_up(size, step);
}

}  // namespace

Arena::Arena(std::uint64_t capacity, std::uint32_t slots)
    : capacity_(capacity / page_bytes * page_bytes), max_slots_(slots) {
  free_.add({0, capacity_});
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

std::vector<std::uint32_t>* Arena::stack_of(std::uint64_t reserved) {
  const auto at = stacks_.find(reserved);
  return at == stacks_.end() || at->second.empty() ? nullptr : &at->second;
}

void Arena::pour_back() {
  for (auto& [reserved, stack] : stacks_) {
    for (const std::uint32_t slot : stack) {
      const std::uint64_t offset = slots_[slot].block.offset;
      free_.add({offset, offset + reserved});
      slot_at_.erase(offset);
      unused_slots_.push_back(slot);
    }
    stack.clear();
  }
  pooled_ = 0;
}

std::optional<Arena::Place> Arena::find_place(std::uint64_t size) {
  // A block that is much of all there is takes no more than its size.
  const std::uint64_t reserved = size > capacity_ / 4 ? size : size_class(size);
  if (const auto* stack = stack_of(reserved)) return Place{slots_[stack->back()].block.offset, reserved, true};
  if (pooled_ >= reserved || !has_slot()) pour_back();
  auto offset = free_.find(reserved);
  if (!offset && pooled_ > 0) {
    pour_back();
    offset = free_.find(reserved);
  }
  if (!has_slot()) return std::nullopt;
  if (offset) return Place{*offset, reserved, false};
  offset = free_.find(size);
  if (!offset) return std::nullopt;
  return Place{*offset, size, false};
}

std::optional<std::uint64_t> Arena::fresh_bytes(std::uint64_t bytes) {
  const std::uint64_t size = align_up(bytes, page_bytes);
  const auto place = find_place(size);
  if (!place) return std::nullopt;
  const Range range{place->offset, place->offset + size};
  if (touched_.contains(range)) return 0;
  std::uint64_t fresh = 0;
  for (const Range part : touched_.missing(range)) fresh += part.size();
  return fresh;
}

std::optional<Arena::Taken> Arena::take(std::uint64_t bytes) {
  const std::uint64_t size = align_up(bytes, page_bytes);
  const auto place = find_place(size);
  if (!place) return std::nullopt;
  const std::uint32_t slot = place->pooled ? pop(place->reserved) : carve(*place);
  Slot& entry = slots_[slot];
  entry.block.size = size;
  entry.taken = true;
  taken_ += size;
  Taken taken{slot, entry.block, {}};
  const Range range{entry.block.offset, entry.block.offset + size};
  if (!touched_.contains(range)) {
    taken.fresh = touched_.missing(range);
    touched_.add(range);
  }
  return taken;
}

std::uint32_t Arena::pop(std::uint64_t reserved) {
  auto& stack = *stack_of(reserved);
  const std::uint32_t slot = stack.back();
  stack.pop_back();
  pooled_ -= reserved;
  return slot;
}

std::uint32_t Arena::carve(const Place& place) {
  const std::uint32_t slot = unused_slot();
  free_.remove({place.offset, place.offset + place.reserved});
  slot_at_.emplace(place.offset, slot);
  slots_[slot].block.offset = place.offset;
  slots_[slot].reserved = place.reserved;
  return slot;
}

void Arena::give_back(std::uint32_t slot) {
  Slot& entry = slots_[slot];
  entry.taken = false;
  taken_ -= entry.block.size;
  stacks_[entry.reserved].push_back(slot);
  pooled_ += entry.reserved;
}

std::optional<std::uint32_t> Arena::find(std::uint64_t offset) const {
  const auto at = slot_at_.find(offset);
  if (at == slot_at_.end() || !slots_[at->second].taken) return std::nullopt;
  return at->second;
}

void Arena::not_filled(const std::vector<Range>& fresh) {
  for (const Range range : fresh) touched_.remove(range);
}

std::vector<Range> Arena::trim() {
  pour_back();
  std::vector<Range> ranges;
  for (const Range range : free_.all()) {
    for (const Range part : touched_.within(range)) ranges.push_back(part);
  }
  for (const Range range : ranges) touched_.remove(range);
  return ranges;
}

}  // namespace levada::shm
