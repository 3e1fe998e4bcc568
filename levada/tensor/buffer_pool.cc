#include "levada/tensor/buffer_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace levada {
namespace {

constexpr std::align_val_t buffer_alignment{64};

/// Rounds up to the next of four sizes per power of two, from 64 bytes on.
std::uint64_t size_class(std::uint64_t bytes) {
  const std::uint64_t at_least = std::max<std::uint64_t>(bytes, 64);
  const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(at_least) / 4, 64);
  return (at_least + step - 1) / step * step;
}

}  // namespace

struct BufferPool::State {
  using Cache = std::map<std::uint64_t, std::vector<std::byte*>>;

  std::atomic<std::uint64_t> used = 0;
  std::mutex mutex;  // guards the members below
  Cache cache;       ///< by size; no list is empty
  std::uint64_t max_used = 0, cached = 0;
  std::uint64_t max_cached = std::numeric_limits<std::uint64_t>::max();

  ~State() { drop_all(); }

  std::byte* allocate(std::uint64_t size) {
    const std::lock_guard lock(mutex);
    const auto found = cache.find(size);
    std::byte* data = nullptr;
    if (found != cache.end()) {
      data = found->second.back();
      forget_last(found);
    } else {
      while (cached > 0 && used + size + cached > max_used) drop_near(size);
      data = static_cast<std::byte*>(::operator new(size, buffer_alignment));
    }
    max_used = std::max(max_used, used += size);
    return data;
  }

  /// Frees a cached buffer of the nearest size, preferably a larger one.
  void drop_near(std::uint64_t size) {
    auto near = cache.lower_bound(size);
    if (near == cache.end()) --near;
    ::operator delete(near->second.back(), buffer_alignment);
    forget_last(near);
  }

  void forget_last(Cache::iterator list) {
    cached -= list->first;
    list->second.pop_back();
    if (list->second.empty()) cache.erase(list);
  }

  void release(std::byte* data, std::uint64_t size) noexcept {
    used -= size;
    // Does not wait for the mutex, because in a forked child the thread that holds it may not exist.
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock || !keep(data, size)) ::operator delete(data, buffer_alignment);
  }

  /// Returns false if the limits do not allow it, or there is no memory for the list entry.
  bool keep(std::byte* data, std::uint64_t size) noexcept {
    if (cached + size > max_cached || cached + size + used > max_used) return false;
    try {
      cache[size].push_back(data);
      cached += size;
      return true;
    } catch (const std::bad_alloc&) {
      std::erase_if(cache, [](const auto& each) { return each.second.empty(); });
      return false;
    }
  }

  void drop_all() {
    for (auto& [size, list] : cache) {
      for (std::byte* data : list) ::operator delete(data, buffer_alignment);
    }
    cache.clear();
    cached = 0;
  }
};

BufferPool::BufferPool() : state_(std::make_shared<State>()) {}

BufferPool::Buffer BufferPool::allocate(std::uint64_t bytes) {
  const std::uint64_t size = size_class(bytes);
  std::byte* data = state_->allocate(size);
  return {data, std::shared_ptr<const void>(data, [state = state_, size](const void* buffer) {
            state->release(static_cast<std::byte*>(const_cast<void*>(buffer)), size);
          })};
}

void BufferPool::limit_cache(std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->max_cached = bytes;
  while (state_->cached > bytes) state_->drop_near(std::numeric_limits<std::uint64_t>::max());
}

void BufferPool::trim() {
  const std::lock_guard lock(state_->mutex);
  state_->drop_all();
  state_->max_used = state_->used;
}

std::uint64_t BufferPool::cached_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->cached;
}

}  // namespace levada
