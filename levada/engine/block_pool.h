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
  std::string engine;  ///< that error messages name
  /// Called when an allocation that failed may succeed now: a destroyed Block has come back, or cached memory has been
  /// given back to the system. It may be called on any thread, within any call of the pool (so it must not take a mutex
  /// with which the pool is called), and after the engine has gone (so it owns what it uses). May be empty.
  std::function<void()> on_free = {};
  std::function<MemoryLimits()> limits = [] { return memory_limits(); };  ///< called without a lock
  std::uint32_t max_slots = std::numeric_limits<std::uint32_t>::max();    ///< blocks in use and cached, at most
};

/// Allocates page-aligned blocks within a budget, and caches what comes back: the block freed last is the next of its
/// size, while it is warm in the cache. Cached plus used memory never exceeds the high-water mark of used memory by
/// more than an eighth, also for ever new sizes: freed neighbors are coalesced, and what is too much is given back to
/// the system. A steady stream makes no system call. Blocks keep the pool alive, so memory may come back after every
/// engine has gone.
///
/// Thread-safe. The pool's mutex is a leaf: it may be called with the caller's own mutex held, and no callback or
/// system call is made with the pool's held. Only try_allocate(), may_allocate() and trim() may take long (reading
/// limits, faulting pages in).
///
/// In a forked child, destroying blocks and the pool does nothing; try_allocate() throws EngineError, and nothing else
/// may be called.
class BlockPool final : public Block::Home, public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool(std::unique_ptr<MemorySource> source, BlockPoolOptions options);
  ~BlockPool() override;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Returns a Block of at least `bytes`; nothing where there is no room at the moment. Throws InvalidArgument for more
  /// than max_block(). Returns nothing for storage that would leave less than half of max_block(), less than 8
  /// MiB or less than half of the slots.
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use = BlockUse::message);
  /// Returns whether try_allocate() would have returned a Block or thrown InvalidArgument.
  bool may_allocate(std::size_t bytes);
  /// Returns how long a waiter may sleep before it asks may_allocate() again. Nothing unless the system's memory has
  /// been short: on_free() is then all that there is to wait for, whereas other processes free memory without it.
  std::optional<Duration> retry_after() const;

  /// Returns the largest block that can ever be allocated: what the source and the limits of the system allow.
  std::uint64_t max_block() const { return max_block_; }
  /// Returns all memory in which blocks may lie.
  ByteView memory() const { return memory_; }
  /// Returns the bytes in blocks that are in use: allocated, or published and not yet given back.
  std::uint64_t in_use() const;
  /// Returns the bytes that the pool holds: in use and cached.
  std::uint64_t resident() const;
  /// Gives all cached memory back to the system. Returns how many bytes that were.
  std::uint64_t trim();
  /// Gives no memory back to the system from now on: a device's driver reads its pages. Any thread.
  void keep_pages() noexcept { keeps_pages_ = true; }

  /// For messages that name their memory by number: slots are small, dense, and unique among blocks in use.
  /// Returns the slot of the block in use that begins at `data`; nothing where none of this pool's does.
  std::optional<std::uint32_t> slot_at(const std::byte* data) const;
  /// Frees a block that was published (Block::release()) and that all receivers have returned. Does not call on_free():
  /// the caller knows best whom to wake.
  void give_back(std::uint32_t slot) noexcept;

  /// Block's destructor calls this.
  void give_back(std::byte* data, std::size_t size) noexcept override;

 private:
  struct State {
    State(std::uint64_t capacity, BlockPoolOptions pool_options)
        : options(std::move(pool_options)), arena(capacity, options.max_slots), budget(options.limits().total) {}
    const BlockPoolOptions options;
    mutable std::mutex mutex;  // guards what follows
    Arena arena;
    Budget budget;
    Clock::time_point refused_until{};  ///< the system had no pages
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
  const std::span<std::byte> memory_;  ///< the source's
  std::unique_ptr<State> state_;       ///< given up in a forked child
  std::atomic<bool> keeps_pages_ = false;
  std::uint64_t max_block_ = 0;
};

/// Makes a pool of at most `memory_bytes` of this process's own memory, and of no more than the system's limits allow.
/// Throws EngineError where no address space can be reserved.
std::shared_ptr<BlockPool> make_heap_pool(std::uint64_t memory_bytes, BlockPoolOptions options);

}  // namespace levada
