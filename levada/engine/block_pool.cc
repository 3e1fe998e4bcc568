#include "levada/engine/block_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "levada/base/error.h"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif

namespace levada {
namespace {

constexpr std::size_t page = 4096;

// Under the address sanitizer, reading a message after its lease has ended is an error, as it is over other engines.
void forbid(const std::byte* data, std::size_t size) {
#ifdef ASAN_POISON_MEMORY_REGION
  ASAN_POISON_MEMORY_REGION(data, size);
#endif
  static_cast<void>(data);
  static_cast<void>(size);
}

void allow(const std::byte* data, std::size_t size) {
#ifdef ASAN_UNPOISON_MEMORY_REGION
  ASAN_UNPOISON_MEMORY_REGION(data, size);
#endif
  static_cast<void>(data);
  static_cast<void>(size);
}

}  // namespace

BlockPool::BlockPool(std::size_t limit, std::shared_ptr<EventCount> changed)
    : limit_(limit / page * page), changed_(std::move(changed)) {}

BlockPool::~BlockPool() {
  drop_free(free_bytes_);
}

// Four sizes per power of two, so that messages of ever new sizes find blocks that have come back.
std::size_t BlockPool::block_size(std::size_t bytes) const {
  const std::size_t pages = align_up(std::max<std::size_t>(bytes, 1), page);
  const std::size_t step = std::max(page, std::bit_floor(pages) / 4);
  const std::size_t rounded = align_up(pages, step);
  return rounded <= limit_ ? rounded : pages;
}

std::optional<Block> BlockPool::try_allocate(std::size_t bytes) {
  if (bytes > limit_) {
    throw InvalidArgument(
        fmt::format("a block of {} is more than the {} that this engine can give; "
                    "make the message smaller or raise memory_bytes",
                    format_bytes(bytes), format_bytes(limit_)));
  }
  const std::size_t size = block_size(bytes);
  std::byte* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (taken_ + size > limit_) return std::nullopt;
    if (auto& free = free_[size]; !free.empty()) {
      data = free.back();
      free.pop_back();
      free_bytes_ -= size;
    } else {
      if (const std::size_t all = taken_ + free_bytes_ + size; all > limit_) drop_free(all - limit_);
      data = static_cast<std::byte*>(std::aligned_alloc(page, size));
      if (data == nullptr)
        throw EngineError(fmt::format("the system gave no memory for a block of {}", format_bytes(size)));
    }
    taken_ += size;
  }
  allow(data, size);
  return Block({data, size}, shared_from_this());
}

bool BlockPool::may_allocate(std::size_t bytes) {
  if (bytes > limit_) return true;  // try_allocate() throws rather than coming back empty
  const std::lock_guard lock(mutex_);
  return taken_ + block_size(bytes) <= limit_;
}

std::size_t BlockPool::trim() {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = free_bytes_;
  drop_free(bytes);
  return bytes;
}

std::size_t BlockPool::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

void BlockPool::give_back(std::byte* data, std::size_t size) noexcept {
  forbid(data, size);
  {
    const std::lock_guard lock(mutex_);
    free_[size].push_back(data);
    free_bytes_ += size;
    taken_ -= size;
  }
  changed_->notify();
}

// Largest first: the fewest calls to the system.
void BlockPool::drop_free(std::size_t needed) {
  std::size_t dropped = 0;
  for (auto size = free_.rbegin(); size != free_.rend(); ++size) {
    while (dropped < needed && !size->second.empty()) {
      std::byte* data = size->second.back();
      size->second.pop_back();
      allow(data, size->first);
      std::free(data);
      dropped += size->first;
    }
  }
  free_bytes_ -= dropped;
}

}  // namespace levada
