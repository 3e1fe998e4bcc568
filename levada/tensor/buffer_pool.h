// A pool of heap buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace levada {

/// Recycles heap buffers, because the first touch of fresh memory costs as much as several copies. Buffers are 64-byte
/// aligned and come in four sizes per power of two. The most recently released buffer of a size is reused first. Cached
/// plus used memory never exceeds the high-water mark of used memory. Thread-safe. Buffers may outlive the pool. A
/// forked child may release buffers, but not allocate them.
class BufferPool {
 public:
  BufferPool();

  struct Buffer {
    std::byte* data = nullptr;  ///< uninitialized
    std::shared_ptr<const void> owner;
  };
  Buffer allocate(std::uint64_t bytes);
  /// Limits cached memory to `bytes` from now on; unlimited by default.
  void limit_cache(std::uint64_t bytes);
  /// Releases all cached memory to the system and resets the high-water mark.
  void trim();
  std::uint64_t cached_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace levada
