// Which bytes of a rank's memory belong to which block. Bookkeeping alone: it touches none of the memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "levada/engine/shm/ranges.h"

namespace levada::shm {

/// Blocks of whole pages, each with a slot number of its own. A block given back waits on a stack of its size and is
/// the first to be used again, so that warm memory stays warm and a steady stream neither searches nor allocates;
/// before memory that was never touched is used, stacks are poured back into the map of free ranges, where neighbours
/// become one. One thread at a time.
class Arena {
 public:
  struct Block {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };

  Arena(std::uint64_t capacity, std::uint32_t slots);

  std::uint64_t capacity() const { return capacity_; }

  /// Where a block of `bytes` would go: how much of it has never been touched. Empty where nothing fits at the moment.
  std::optional<std::uint64_t> fresh_bytes(std::uint64_t bytes);

  struct Taken {
    std::uint32_t slot = 0;
    Block block;
    std::vector<Range> fresh;  ///< parts never touched: to be filled with pages before use
  };
  /// Empty where nothing fits at the moment, or all slots are taken. The block's size is `bytes` rounded to pages.
  std::optional<Taken> take(std::uint64_t bytes);
  void give_back(std::uint32_t slot);

  /// The slot of the block that begins at `offset`, if one is taken there.
  std::optional<std::uint32_t> find(std::uint64_t offset) const;
  const Block& block(std::uint32_t slot) const { return slots_[slot].block; }

  /// The system refused to fill these parts: they count as never touched again.
  void not_filled(const std::vector<Range>& fresh);

  /// Bytes in blocks that are taken.
  std::uint64_t taken() const { return taken_; }
  /// Bytes that hold memory now, in blocks and in the pool.
  std::uint64_t touched() const { return touched_.total(); }
  /// Forgets all free blocks; gives the ranges of their memory, to be handed back to the system.
  std::vector<Range> trim();

 private:
  struct Slot {
    Block block;
    std::uint64_t reserved = 0;  ///< addresses that belong to it: its size class, or its size where memory is short
    bool taken = false;
  };

  bool has_slot() const { return !unused_slots_.empty() || slots_.size() < max_slots_; }
  /// Where a block of whole pages would go: onto a stack's top, or out of the free ranges.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t reserved = 0;
    bool pooled = false;
  };
  std::optional<Place> find_place(std::uint64_t size);
  std::uint32_t pop(std::uint64_t reserved);
  std::uint32_t carve(const Place& place);
  std::uint32_t unused_slot();
  std::vector<std::uint32_t>* stack_of(std::uint64_t reserved);
  void pour_back();

  std::uint64_t capacity_;
  std::uint32_t max_slots_;
  Ranges free_;
  Ranges touched_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> unused_slots_;
  std::map<std::uint64_t, std::vector<std::uint32_t>> stacks_;  ///< by reserved size
  std::uint64_t taken_ = 0;
  std::uint64_t pooled_ = 0;                                  ///< reserved bytes on the stacks
  std::unordered_map<std::uint64_t, std::uint32_t> slot_at_;  ///< by offset; blocks on stacks included
};

}  // namespace levada::shm
