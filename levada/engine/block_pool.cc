#include "levada/engine/block_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "levada/base/assert.h"
#include "levada/base/error.h"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif

namespace levada {
namespace {

/// Interval between requests for pages after the system has refused some, and between checks of its limits.
constexpr Duration retry_interval = std::chrono::milliseconds(100);

// Under the address sanitizer, reading a message after its lease has ended is an error, as on other engines.
void poison(std::span<const std::byte> memory) {
#ifdef ASAN_POISON_MEMORY_REGION
  ASAN_POISON_MEMORY_REGION(memory.data(), memory.size());
#endif
  static_cast<void>(memory);
}

void unpoison(std::span<const std::byte> memory) {
#ifdef ASAN_UNPOISON_MEMORY_REGION
  ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
#endif
  static_cast<void>(memory);
}

}  // namespace

BlockPool::BlockPool(std::unique_ptr<MemorySource> source, BlockPoolOptions options)
    : source_(std::move(source)),
      memory_(source_->memory()),
      state_(std::make_unique<State>(memory_.size(), std::move(options))),
      max_block_(std::min(state_->arena.capacity(), state_->budget.max() / Arena::page_bytes * Arena::page_bytes)) {}

BlockPool::~BlockPool() {
  if (!token_.valid()) {
    // The parent's threads may have been using it.
    static_cast<void>(state_.release());
    return;
  }
  for (const Interval evicted : state_->arena.evict_all()) unpoison(memory_of(evicted));
}

std::span<std::byte> BlockPool::memory_of(Interval interval) const {
  return memory_.subspan(interval.begin, interval.size());
}

/// Called with the lock held.
bool BlockPool::may_store(std::size_t bytes) const {
  constexpr std::uint64_t min_left = std::uint64_t{8} << 20;  // for larger messages, such as buckets
  const std::uint64_t max_stored = std::min(max_block_ / 2, max_block_ - std::min(max_block_, min_left));
  return bytes <= max_stored && state_->arena.used() <= max_stored - bytes &&
         state_->arena.used_slots() < state_->options.max_slots / 2;
}

std::optional<Block> BlockPool::try_allocate(std::size_t bytes, BlockUse use) {
  if (!token_.valid()) {
    throw EngineError(
        fmt::format("this {} engine belongs to the process that this one was forked from; create a new one in "
                    "the child",
                    state_->options.engine));
  }
  if (bytes > max_block_ && use == BlockUse::message) {
    throw InvalidArgument(
        fmt::format("a block of {} exceeds the {} that the {} engine can allocate; send smaller messages, or raise "
                    "memory_bytes, the control group's memory limit or ulimit -v, whichever is smallest",
                    format_bytes(bytes), format_bytes(max_block_), state_->options.engine));
  }
  std::unique_lock lock(state_->mutex);
  if (use == BlockUse::storage && !may_store(bytes)) return std::nullopt;
  auto block = state_->arena.try_reuse(bytes);
  if (!block) block = allocate(bytes, lock);
  if (!block) return std::nullopt;
  const std::span<std::byte> memory = memory_of(*block);
  unpoison(memory);
  lock.unlock();
  return Block(memory, shared_from_this());
}

std::optional<Interval> BlockPool::allocate(std::size_t bytes, std::unique_lock<std::mutex>& lock) {
  const auto place = find_place(bytes, lock);
  if (!place) return std::nullopt;
  const Arena::Allocation allocation = state_->arena.allocate(*place);
  if (place->unbacked > 0) {
    state_->budget.spend(place->unbacked);
    discard(state_->arena.evict_excess(), lock);
    if (!populate(allocation, lock)) return std::nullopt;
  }
  return allocation.block;
}

bool BlockPool::may_allocate(std::size_t bytes) {
  if (bytes > max_block_) return true;
  std::unique_lock lock(state_->mutex);
  return find_place(bytes, lock).has_value();
}

std::optional<Duration> BlockPool::retry_after() const {
  const std::lock_guard lock(state_->mutex);
  return state_->system_was_short ? std::optional(retry_interval) : std::nullopt;
}

std::optional<Arena::Place> BlockPool::find_place(std::size_t bytes, std::unique_lock<std::mutex>& lock) {
  const auto place = state_->arena.find_place(bytes);
  if (!place || place->unbacked == 0) return place;
  if (Clock::now() < state_->refused_until) return std::nullopt;
  if (state_->budget.covers(place->unbacked)) return place;
  return find_within_budget(bytes, lock);
}

/// Reads the system's limits. If they do not suffice, returns cached memory to the system and reads them again.
std::optional<Arena::Place> BlockPool::find_within_budget(std::size_t bytes, std::unique_lock<std::mutex>& lock) {
  State& state = *state_;
  for (const bool trims : {false, true}) {
    if (trims && discard(state.arena.evict_all(), lock) == 0) break;
    const Budget::Reading before = state.budget.reading();
    lock.unlock();
    const std::uint64_t available = state_->options.limits().available;
    lock.lock();
    const auto place = state.arena.find_place(bytes);
    if (!place || place->unbacked == 0) return place;
    state.budget.refresh(place->unbacked, available, before);
    if (state.budget.covers(place->unbacked)) return place;
  }
  state.system_was_short = true;
  return std::nullopt;
}

/// Called with the lock held; releases it and takes it again.
std::uint64_t BlockPool::discard(const std::vector<Interval>& evicted, std::unique_lock<std::mutex>& lock) {
  if (evicted.empty()) return 0;
  lock.unlock();
  std::vector<bool> discarded;
  std::uint64_t bytes = 0;
  for (const Interval interval : evicted) {
    unpoison(memory_of(interval));
    discarded.push_back(!keeps_pages_ && source_->discard(interval));
    if (discarded.back()) bytes += interval.size();
  }
  lock.lock();
  for (std::size_t i = 0; i < evicted.size(); ++i) state_->arena.put_back(evicted[i], !discarded[i]);
  if (bytes == 0 || !state_->options.on_free) return bytes;
  lock.unlock();
  state_->options.on_free();
  lock.lock();
  return bytes;
}

/// Called with the lock held; releases it and takes it again.
bool BlockPool::populate(const Arena::Allocation& allocation, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const auto& parts = allocation.unbacked;
  unpoison(memory_of(allocation.block));
  const bool populated =
      std::all_of(parts.begin(), parts.end(), [&](Interval part) { return source_->populate(part); });
  if (!populated) {
    for (const Interval part : parts) source_->discard(part);
  }
  lock.lock();
  LEVADA_ASSERT(total_size(parts) <= allocation.block.size(), "a block is populated within its bounds");
  state_->budget.settle(total_size(parts));
  if (populated) return true;
  state_->arena.free_unpopulated(allocation);
  state_->refused_until = Clock::now() + retry_interval;
  state_->system_was_short = true;
  return false;
}

std::uint64_t BlockPool::in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->arena.used();
}

std::uint64_t BlockPool::resident() const {
  const std::lock_guard lock(state_->mutex);
  return state_->arena.resident();
}

std::uint64_t BlockPool::trim() {
  std::unique_lock lock(state_->mutex);
  return discard(state_->arena.evict_all(), lock);
}

std::optional<std::uint32_t> BlockPool::slot_at(const std::byte* data) const {
  const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(memory_.data());
  const std::lock_guard lock(state_->mutex);
  return state_->arena.slot_at(offset);
}

void BlockPool::free_block(std::uint32_t slot) noexcept {
  if (!token_.valid()) return;
  const std::lock_guard lock(state_->mutex);
  poison(memory_of(state_->arena.block(slot)));
  state_->arena.free(slot);
}

void BlockPool::free_block(std::byte* data, std::size_t size) noexcept {
  if (!token_.valid()) return;
  poison({data, size});
  {
    const std::lock_guard lock(state_->mutex);
    const auto slot = state_->arena.slot_at(static_cast<std::uint64_t>(data - memory_.data()));
    LEVADA_ASSERT(slot.has_value(), "a block returns to its own pool, once");
    state_->arena.free(*slot);
  }
  if (state_->options.on_free) state_->options.on_free();
}

std::shared_ptr<BlockPool> make_heap_pool(std::uint64_t memory_bytes, BlockPoolOptions options) {
  auto source = std::make_unique<HeapSource>(std::min(memory_bytes, options.limits().total));
  return std::make_shared<BlockPool>(std::move(source), std::move(options));
}

}  // namespace levada
