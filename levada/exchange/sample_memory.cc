#include "levada/exchange/sample_memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <new>

namespace levada {
namespace {

constexpr std::align_val_t alignment{64};

/// The next of four sizes per power of two, from 64 bytes on.
std::uint64_t size_class(std::uint64_t bytes) {
  const std::uint64_t least = std::max<std::uint64_t>(bytes, 64);
  const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(least) / 4, 64);
  return (least + step - 1) / step * step;
}

}  // namespace

struct SampleMemory::Pool {
  using Free = std::map<std::uint64_t, std::vector<std::byte*>>;

  std::mutex mutex;
  Free free;  ///< by size
  std::uint64_t in_use = 0, most_in_use = 0, kept = 0;

  ~Pool() { empty(); }

  std::byte* take(std::uint64_t size) {
    const std::lock_guard lock(mutex);
    const auto found = free.find(size);
    std::byte* data = nullptr;
    if (found != free.end()) {
      data = found->second.back();
      forget_last(found);
    } else {
      while (kept > 0 && in_use + size + kept > most_in_use) drop_near(size);
      data = static_cast<std::byte*>(::operator new(size, alignment));
    }
    in_use += size;
    most_in_use = std::max(most_in_use, in_use);
    return data;
  }

  /// Gives up the piece that is nearest in size, a larger one if there is one.
  void drop_near(std::uint64_t size) {
    auto near = free.lower_bound(size);
    if (near == free.end()) --near;
    ::operator delete(near->second.back(), alignment);
    forget_last(near);
  }

  void forget_last(Free::iterator of) {
    kept -= of->first;
    of->second.pop_back();
    if (of->second.empty()) free.erase(of);
  }

  void give_back(std::byte* data, std::uint64_t size) noexcept {
    const std::lock_guard lock(mutex);
    in_use -= size;
    if (kept + size + in_use > most_in_use || !keep(data, size)) ::operator delete(data, alignment);
  }

  /// False where there is no memory even for that.
  bool keep(std::byte* data, std::uint64_t size) noexcept {
    try {
      free[size].push_back(data);
      kept += size;
      return true;
    } catch (const std::bad_alloc&) {
      std::erase_if(free, [](const auto& each) { return each.second.empty(); });
      return false;
    }
  }

  void empty() {
    const std::lock_guard lock(mutex);
    for (auto& [size, list] : free) {
      for (std::byte* data : list) ::operator delete(data, alignment);
    }
    free.clear();
    kept = 0;
    most_in_use = in_use;
  }
};

SampleMemory::SampleMemory() : pool_(std::make_shared<Pool>()) {}

SampleMemory::Piece SampleMemory::allocate(std::uint64_t bytes) {
  const std::uint64_t size = size_class(bytes);
  std::byte* data = pool_->take(size);
  return {data, std::shared_ptr<const void>(data, [pool = pool_, size](const void* given) {
            pool->give_back(static_cast<std::byte*>(const_cast<void*>(given)), size);
          })};
}

void SampleMemory::trim() {
  pool_->empty();
}

std::uint64_t SampleMemory::kept_bytes() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->kept;
}

}  // namespace levada
