// Assigns ranges of an address space to blocks. Bookkeeping only: never touches the memory itself.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "levada/base/assert.h"
#include "levada/base/bytes.h"
#include "levada/engine/intervals.h"

namespace levada {

/// Allocates blocks of whole pages, each with a unique slot number. A freed block goes on the stack of its size class
/// and is the first to be reused, so that memory stays warm and a steady stream neither searches nor allocates. Before
/// it uses memory that is not resident, the arena coalesces the blocks on the stacks with their free neighbors, so that
/// other sizes can use their memory. Not thread-safe.
class Arena {
 public:
  static constexpr std::uint64_t page_bytes = 4096;

  /// `capacity` is in bytes, rounded down to whole pages. `max_slots` limits the number of blocks, in use and on the
  /// stacks.
  Arena(std::uint64_t capacity, std::uint32_t max_slots);

  std::uint64_t capacity() const { return capacity_; }

  /// The position of a possible block. Valid until the next call that changes the arena.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;             ///< at least the requested size; includes resident memory that the block keeps
    std::uint64_t reserved = 0;         ///< address space that the block keeps: its size class, or its size
    std::uint64_t unbacked = 0;         ///< bytes of the block that are not resident
    std::optional<std::uint32_t> slot;  ///< slot of the freed block to reuse, if any
  };
  /// Finds room for a block of `bytes`. Returns nothing if there is none now, or all slots are used.
  std::optional<Place> find_place(std::uint64_t bytes);

  struct Allocation {
    std::uint32_t slot = 0;
    Interval block;
    std::vector<Interval> unbacked;  ///< to be populated before use; counted as resident from now on
  };
  /// Allocates the block that find_place() found.
  Allocation allocate(const Place& place);
  /// Allocates the block on top of the stack for this size, if there is one and it is large enough. A steady stream
  /// needs nothing else.
  std::optional<Interval> try_reuse(std::uint64_t bytes);
  void free(std::uint32_t slot);
  /// Frees a block that was just allocated and that the system could not populate.
  void free_unpopulated(const Allocation& allocation);

  /// Returns the slot of the block in use that begins at `offset`.
  std::optional<std::uint32_t> slot_at(std::uint64_t offset) const;
  Interval block(std::uint32_t slot) const;

  /// Removes free resident memory from the arena until at most max_resident() is resident. The caller discards it and
  /// then calls put_back(). Usually returns nothing.
  std::vector<Interval> evict_excess();
  /// Like evict_excess(), but removes all free resident memory and resets max_used() to used().
  std::vector<Interval> evict_all();
  /// Makes `evicted` free again. `resident`: whether it is still resident, because the system refused to discard it.
  void put_back(Interval evicted, bool resident);

  /// Returns the bytes in blocks that are in use.
  std::uint64_t used() const { return used_; }
  /// Returns the number of blocks in use.
  std::uint64_t used_slots() const { return slots_.size() - unused_slots_.size() - stacked_; }
  /// Returns the high-water mark of used().
  std::uint64_t max_used() const { return max_used_; }
  /// Returns how much may stay resident. If block sizes keep changing, gaps form between blocks. With an eighth to
  /// spare, about 1% of the bytes have to be populated again; without it, 5% to 10%.
  std::uint64_t max_resident() const { return max_used_ + max_used_ / 8 / page_bytes * page_bytes; }
  /// Returns the bytes that are resident, in use or free.
  std::uint64_t resident() const { return resident_.total(); }

 private:
  static constexpr std::size_t classes = 400;  ///< eight per power of two of pages, so at most an eighth apart
  static constexpr std::uint16_t no_class = classes;

  struct SizeClass {
    std::uint64_t bytes = 0;  ///< the largest size in the class
    std::uint16_t index = 0;
  };
  static std::uint64_t block_size(std::uint64_t bytes);
  static SizeClass size_class_of(std::uint64_t size);

  struct Slot {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;      ///< all of it is resident
    std::uint64_t reserved = 0;  ///< nothing beyond `size` is resident
    std::uint16_t size_class = no_class;
    bool used = false;
  };

  std::optional<Place> find_unused(std::uint64_t size) const;
  std::uint32_t split(const Place& place);
  std::uint32_t unused_slot();
  bool has_slot() const { return !unused_slots_.empty() || slots_.size() < max_slots_; }
  void forget(std::uint32_t slot);
  void coalesce();
  void use(Slot& slot, std::uint64_t size);
  std::vector<Interval> evict(std::uint64_t bytes);

  std::uint64_t capacity_;
  std::uint32_t max_slots_;
  IntervalSet free_;  ///< excludes the blocks on the stacks
  IntervalSet resident_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_slots_;
  std::array<std::vector<std::uint32_t>, classes> stacks_;
  std::uint64_t stacked_ = 0;           ///< number of blocks on the stacks
  std::vector<std::uint32_t> slot_at_;  ///< indexed by a block's first page; meaningless for other pages
  std::uint64_t used_ = 0;
  std::uint64_t max_used_ = 0;
};

// The functions that a steady stream calls are inline.

inline std::uint64_t Arena::block_size(std::uint64_t bytes) {
  return align_up(std::max<std::uint64_t>(bytes, 1), page_bytes);
}

inline Arena::SizeClass Arena::size_class_of(std::uint64_t size) {
  std::uint64_t pages = size / page_bytes;
  const std::uint64_t step = std::max<std::uint64_t>(1, std::bit_floor(pages) / 8);
  pages = align_up(pages, step);
  const std::uint64_t shift = pages < 8 ? 0 : std::bit_width(pages) - 4U;
  return {pages * page_bytes, static_cast<std::uint16_t>(8 * shift + (pages >> shift))};
}

inline void Arena::use(Slot& slot, std::uint64_t size) {
  LEVADA_ASSERT(!slot.used, "a block in use is not given out again");
  slot.size = size;
  slot.used = true;
  used_ += size;
  max_used_ = std::max(max_used_, used_);
}

inline std::optional<Interval> Arena::try_reuse(std::uint64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const std::uint64_t size = block_size(bytes);
  auto& stack = stacks_[size_class_of(size).index];
  if (stack.empty()) return std::nullopt;
  Slot& entry = slots_[stack.back()];
  if (entry.size < size) return std::nullopt;
  stack.pop_back();
  --stacked_;
  use(entry, entry.size);
  return Interval{entry.offset, entry.offset + entry.size};
}

inline std::optional<std::uint32_t> Arena::slot_at(std::uint64_t offset) const {
  const std::size_t first_page = offset / page_bytes;
  if (first_page >= slot_at_.size() || slot_at_[first_page] >= slots_.size()) return std::nullopt;
  const std::uint32_t slot = slot_at_[first_page];
  if (!slots_[slot].used || slots_[slot].offset != offset) return std::nullopt;
  return slot;
}

inline void Arena::free(std::uint32_t slot) {
  LEVADA_ASSERT(slot < slots_.size() && slots_[slot].used, "a block is freed once");
  Slot& entry = slots_[slot];
  entry.used = false;
  used_ -= entry.size;
  if (entry.size_class == no_class) return forget(slot);
  stacks_[entry.size_class].push_back(slot);
  ++stacked_;
}

}  // namespace levada
