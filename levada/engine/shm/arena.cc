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
    : capacity_(capacity / page_bytes * page_bytes), most_slots_(slots) {
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

std::optional<std::uint64_t> Arena::fresh_bytes(std::uint64_t bytes) {
  const std::uint64_t size = align_up(bytes, page_bytes);
  const std::uint64_t reserved = std::min(size_class(bytes), std::max(size, capacity_));
  if (const auto* stack = stack_of(reserved)) {
    const std::uint64_t offset = slots_[stack->back()].block.offset;
    const Range range{offset, offset + size};
    if (touched_.contains(range)) return 0;
    std::uint64_t fresh = 0;
    for (const Range part : touched_.missing(range)) fresh += part.size();
    return fresh;
  }
  if (pooled_ >= reserved || !has_slot()) pour_back();
  auto offset = free_.find(reserved);
  if (!offset && pooled_ > 0) {
    pour_back();
    offset = free_.find(reserved);
  }
  if (!offset || !has_slot()) return std::nullopt;
  std::uint64_t fresh = 0;
  for (const Range part : touched_.missing({*offset, *offset + size})) fresh += part.size();
  return fresh;
}

std::optional<Arena::Taken> Arena::take(std::uint64_t bytes) {
  if (!fresh_bytes(bytes)) return std::nullopt;
  const std::uint64_t size = align_up(bytes, page_bytes);
  const std::uint64_t reserved = std::min(size_class(bytes), std::max(size, capacity_));
  std::uint32_t slot = 0;
  if (auto* stack = stack_of(reserved)) {
    slot = stack->back();
    stack->pop_back();
    pooled_ -= reserved;
  } else {
    const std::uint64_t offset = *free_.find(reserved);
    free_.remove({offset, offset + reserved});
    slot = unused_slot();
    slot_at_.emplace(offset, slot);
    slots_[slot].block.offset = offset;
    slots_[slot].reserved = reserved;
  }
  Slot& entry = slots_[slot];
  entry.block.size = size;
  entry.taken = true;
  Taken taken{slot, entry.block, {}};
  const Range range{entry.block.offset, entry.block.offset + size};
  if (!touched_.contains(range)) {
    taken.fresh = touched_.missing(range);
    touched_.add(range);
  }
  return taken;
}

void Arena::give_back(std::uint32_t slot) {
  Slot& entry = slots_[slot];
  entry.taken = false;
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
