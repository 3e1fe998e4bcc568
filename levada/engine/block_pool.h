// Allocates one rank's blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/memory_limits.h"
#include "levada/engine/arena.h"
#include "levada/engine/engine.h"
#include "levada/engine/fork_token.h"
#include "levada/engine/memory_source.h"

namespace levada {

struct BlockPoolOptions {
  std::string engine;  ///< the engine's name in error messages
  /// Called when an allocation that failed may now succeed: a Block has been destroyed, or cached memory has been
  /// returned to the system. Called on any thread, inside any call to the pool, so it must not lock a mutex that is
  /// held while the pool is called. May be called after the engine is destroyed, so it must own what it uses. May be
  /// empty.
  std::function<void()> on_free = {};
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };  ///< called without a lock
  std::uint32_t max_slots = std::numeric_limits<std::uint32_t>::max();  ///< maximum number of blocks, in use and cached
};

/// Allocates page-aligned blocks within a budget and caches freed ones. The most recently freed block of a size is
/// reused first, while it is still in the CPU cache. Cached plus used memory never exceeds the high-water mark of used
/// memory by more than an eighth, even if sizes keep changing: free neighbors are coalesced, and the excess is returned
/// to the system. A steady stream makes no system calls. Blocks keep the pool alive, so they may outlive every engine.
///
/// Thread-safe. The pool's mutex is a leaf lock: callers may hold their own mutex, and the pool makes no callback or
/// system call while it holds its own. Only try_allocate(), may_allocate() and trim() may take long, to read limits or
/// fault in pages.
///
/// In a forked child, destroying blocks and the pool does nothing; try_allocate() throws EngineError, and no other
/// function may be called.
class BlockPool final : public Block::Home, public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool(std::unique_ptr<MemorySource> source, BlockPoolOptions options);
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Returns a Block of at least `bytes`, or nothing if there is no room now. Returns nothing for storage that would
  /// leave less than half of max_block(), less than 8 MiB, or less than half of the slots. Throws InvalidArgument for a
  /// message that is larger than max_block().
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use = BlockUse::message);
  /// Returns whether try_allocate() for a message would have returned a Block or thrown InvalidArgument.
  bool may_allocate(std::size_t bytes);
  /// Returns how long a waiter may sleep before it calls may_allocate() again, or nothing unless the system has been
  /// short of memory. A waiter has to poll only in that case, because memory that other processes free causes no
  /// on_free().
  std::optional<Duration> retry_after() const;

  /// Returns the size of the largest block that the source and the system can ever provide.
  std::uint64_t max_block() const { return max_block_; }
  /// Returns the whole range of memory that blocks may be in.
  ByteView memory() const { return memory_; }
  /// Returns the bytes in blocks that are in use: allocated, or published and not yet returned.
  std::uint64_t in_use() const;
  /// Returns the bytes that the pool holds, in use and cached.
  std::uint64_t resident() const;
  /// Releases all cached memory to the system and returns the number of bytes released.
  std::uint64_t trim();
  /// Stops returning memory to the system, because a device driver reads its pages. Thread-safe.
  void keep_pages() noexcept { keeps_pages_ = true; }

  /// Returns the slot of the block in use that begins at `data`, or nothing if none of this pool's blocks does. Slots
  /// are small, dense numbers, unique among the blocks in use, by which messages refer to memory.
  std::optional<std::uint32_t> slot_at(const std::byte* data) const;
  /// Frees a block that was published (Block::release()) and that all receivers have released. Does not call on_free():
  /// the caller knows which threads to wake.
  void free_block(std::uint32_t slot) noexcept;

  /// Called by Block's destructor.
  void free_block(std::byte* data, std::size_t size) noexcept override;

 private:
  struct State {
    State(std::uint64_t capacity, BlockPoolOptions pool_options)
        : options(std::move(pool_options)), arena(capacity, options.max_slots), budget(options.limits().total) {}
    const BlockPoolOptions options;
    mutable std::mutex mutex;  // guards the members below
    Arena arena;
    Budget budget;
    Clock::time_point refused_until{};  ///< set after the system had no pages
    bool system_was_short = false;
  };

  bool may_store(std::size_t bytes) const;
  std::optional<Interval> allocate(std::size_t bytes, std::unique_lock<std::mutex>& lock);
  std::optional<Arena::Place> find_place(std::size_t bytes, std::unique_lock<std::mutex>& lock);
  std::optional<Arena::Place> find_within_budget(std::size_t bytes, std::unique_lock<std::mutex>& lock);
  std::uint64_t discard(const std::vector<Interval>& evicted, std::unique_lock<std::mutex>& lock);
  bool populate(const Arena::Allocation& allocation, std::unique_lock<std::mutex>& lock);
  std::span<std::byte> memory_of(Interval interval) const;

  const ForkToken token_;
  const std::unique_ptr<MemorySource> source_;
  const std::span<std::byte> memory_;  ///< owned by the source
  std::unique_ptr<State> state_;       ///< leaked in a forked child
  std::atomic<bool> keeps_pages_ = false;
  std::uint64_t max_block_ = 0;
};

/// Returns a pool of at most `memory_bytes` of this process's private memory, within the system's limits. Throws
/// EngineError if no address space can be reserved.
std::shared_ptr<BlockPool> make_heap_pool(std::uint64_t memory_bytes, BlockPoolOptions options);

}  // namespace levada
