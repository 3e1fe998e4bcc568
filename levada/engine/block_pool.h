// The memory of one rank's blocks.
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
  /// Called when an allocation that failed may now succeed: a destroyed Block has come back, or cached memory has been
  /// returned to the system. May be called on any thread, within any call of the pool, so it must not lock a mutex that
  /// is held while the pool is called. May be called after the engine is gone, so it owns what it uses. May be empty.
  std::function<void()> on_free = {};
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };  ///< called without a lock
  std::uint32_t max_slots = std::numeric_limits<std::uint32_t>::max();    ///< limit on blocks in use and cached
};

/// Allocates page-aligned blocks within a budget and caches freed ones: the block freed last is the next of its size to
/// be reused, while it is warm in the CPU cache. Cached plus used memory never exceeds the high-water mark of used
/// memory by more than an eighth, even with ever new sizes: freed neighbors are coalesced, and the excess is returned
/// to the system. A steady stream makes no system call. Blocks keep the pool alive, so memory may come back after every
/// engine is gone.
///
/// Thread-safe. The pool's mutex is a leaf: callers may hold their own mutex, and no callback or system call is made
/// with the pool's held. Only try_allocate(), may_allocate() and trim() may take long (reading limits, faulting pages
/// in).
///
/// In a forked child, destroying blocks and the pool does nothing; try_allocate() throws EngineError, and no other
/// function may be called.
class BlockPool final : public Block::Home, public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool(std::unique_ptr<MemorySource> source, BlockPoolOptions options);
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Returns a Block of at least `bytes`; nothing if there is no room now. Returns nothing for storage that would leave
  /// less than half of max_block(), less than 8 MiB, or less than half of the slots. Throws InvalidArgument for a
  /// message that is larger than max_block().
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use = BlockUse::message);
  /// Returns whether try_allocate() for a message would have returned a Block or thrown InvalidArgument.
  bool may_allocate(std::size_t bytes);
  /// Returns how long a waiter may sleep before it calls may_allocate() again; nothing unless the system has been short
  /// of memory. Other processes free memory without a call of on_free(), so only then does a waiter have to poll.
  std::optional<Duration> retry_after() const;

  /// Returns the size of the largest block that can ever be allocated, limited by the source and the system.
  std::uint64_t max_block() const { return max_block_; }
  /// Returns all memory that may contain blocks.
  ByteView memory() const { return memory_; }
  /// Returns the bytes in blocks that are in use: allocated, or published and not yet given back.
  std::uint64_t in_use() const;
  /// Returns the bytes that the pool holds, in use and cached.
  std::uint64_t resident() const;
  /// Returns all cached memory to the system. Returns the number of bytes.
  std::uint64_t trim();
  /// Stops returning memory to the system, because a device driver reads its pages. Thread-safe.
  void keep_pages() noexcept { keeps_pages_ = true; }

  /// For messages that refer to memory by number: slots are small, dense, and unique among blocks in use. Returns the
  /// slot of the block in use that begins at `data`; nothing if none of this pool's blocks does.
  std::optional<std::uint32_t> slot_at(const std::byte* data) const;
  /// Frees a block that was published (Block::release()) and that all receivers have returned. Does not call on_free():
  /// the caller knows best whom to wake.
  void give_back(std::uint32_t slot) noexcept;

  /// Called by Block's destructor.
  void give_back(std::byte* data, std::size_t size) noexcept override;

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

/// Returns a pool of at most `memory_bytes` of this process's private memory, capped by the system's limits. Throws
/// EngineError if no address space can be reserved.
std::shared_ptr<BlockPool> make_heap_pool(std::uint64_t memory_bytes, BlockPoolOptions options);

}  // namespace levada
