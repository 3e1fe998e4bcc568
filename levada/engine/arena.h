// Which bytes of a range of address space belong to which block. Bookkeeping alone: it touches none of the memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "levada/engine/intervals.h"

namespace levada {

/// Allocates blocks of whole pages, each with a slot number of its own. A freed block waits on a stack of its size
/// class and is the first to be used again: warm memory stays warm, and a steady stream neither searches nor allocates.
/// Before memory that is not resident is used, the blocks on the stacks are coalesced with their free neighbors, so
/// that other sizes use their memory. Not thread-safe.
class Arena {
 public:
  static constexpr std::uint64_t page_bytes = 4096;

  /// `capacity`: in bytes, of which whole pages are used. `max_slots`: used blocks and those on the stacks, at most.
  Arena(std::uint64_t capacity, std::uint32_t max_slots);

  std::uint64_t capacity() const { return capacity_; }

  /// Where a block would lie. Valid until the next call that changes the arena.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;      ///< at least what was asked for: resident memory that the block keeps is part of it
    std::uint64_t reserved = 0;  ///< address space that the block keeps: its size class, or its size
    std::uint64_t unbacked = 0;  ///< bytes of it that are not resident
    std::optional<std::uint32_t> slot;  ///< of the freed block that would be used again
  };
  /// Returns nothing where no block of `bytes` fits at the moment, or all slots are used.
  std::optional<Place> find_place(std::uint64_t bytes);

  struct Allocation {
    std::uint32_t slot = 0;
    Interval block;
    std::vector<Interval> unbacked;  ///< to be populated before use; they count as resident from now on
  };
  /// Allocates the block that find_place() has found.
  Allocation allocate(const Place& place);
  void free(std::uint32_t slot);
  /// Frees a block that was just allocated and that the system could not populate.
  void free_unpopulated(const Allocation& allocation);

  /// Returns the slot of the block in use that begins at `offset`.
  std::optional<std::uint32_t> slot_at(std::uint64_t offset) const;
  Interval block(std::uint32_t slot) const;

  /// Takes free resident memory out of the arena until no more than max_resident() is resident: discard it, then call
  /// put_back(). Usually returns nothing.
  std::vector<Interval> evict_excess();
  /// The same for all free resident memory; max_used() starts anew at used().
  std::vector<Interval> evict_all();
  /// Makes `evicted` free again. `resident`: the system has refused to discard it.
  void put_back(Interval evicted, bool resident);

  /// Returns the bytes in blocks that are in use.
  std::uint64_t used() const { return used_; }
  /// Returns the high-water mark of used().
  std::uint64_t max_used() const { return max_used_; }
  /// Returns how much may stay resident. Blocks of ever new sizes leave gaps between them; with an eighth to spare,
  /// about 1% of their bytes are populated anew, without it 5% to 10%.
  std::uint64_t max_resident() const { return max_used_ + max_used_ / 8 / page_bytes * page_bytes; }
  /// Returns the bytes that are resident, in use or free.
  std::uint64_t resident() const { return resident_.total(); }

 private:
  static constexpr std::size_t classes = 400;  ///< eight per power of two of pages
  static constexpr std::uint16_t no_class = classes;

  struct Slot {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;      ///< all of it is resident
    std::uint64_t reserved = 0;  ///< none of the rest is
    std::uint16_t size_class = no_class;
    bool used = false;
  };

  std::optional<Place> find_unused(std::uint64_t size) const;
  std::uint32_t split(const Place& place);
  std::uint32_t unused_slot();
  bool has_slot() const { return !unused_slots_.empty() || slots_.size() < max_slots_; }
  void forget(std::uint32_t slot);
  void coalesce();
  std::vector<Interval> evict(std::uint64_t bytes);

  std::uint64_t capacity_;
  std::uint32_t max_slots_;
  IntervalSet free_;  ///< but for the blocks on the stacks
  IntervalSet resident_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_slots_;
  std::array<std::vector<std::uint32_t>, classes> stacks_;
  std::uint64_t stacked_ = 0;                                 ///< reserved bytes on the stacks
  std::unordered_map<std::uint64_t, std::uint32_t> slot_at_;  ///< by offset; blocks on the stacks included
  std::uint64_t used_ = 0;
  std::uint64_t max_used_ = 0;
};

}  // namespace levada
