// The only functions that copy payload. They count the copied bytes, from which benchmarks compute copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// How a copy uses the caches.
enum class CopyMode : std::uint8_t {
  cached,        ///< leaves the most recently written bytes in the cache, for a reader that follows soon
  non_temporal,  ///< bypasses the caches, if the CPU can, without first reading the lines that it overwrites
};

/// Slightly more recently written bytes than this are still in a cache near the core that wrote them.
inline constexpr std::uint64_t cached_write_bytes = std::uint64_t{4} << 20;

/// Returns how to copy `bytes` bytes of which none is read before the last is written. Above cached_write_bytes, a
/// non-temporal copy takes about two thirds of the time.
constexpr CopyMode copy_mode_for(std::uint64_t bytes) {
  return bytes > cached_write_bytes ? CopyMode::non_temporal : CopyMode::cached;
}

/// Copies payload like memcpy, and adds it to copied_bytes(). Engines and transfer copy payload only through these
/// functions.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode = CopyMode::cached);

/// Copies `runs` runs of `run_bytes` each contiguously to `to`. The runs begin at `from`, `stride` bytes apart, which
/// may be zero or negative. Counts their total as one copy.
void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride, CopyMode mode = CopyMode::cached);

/// Returns the bytes that these functions have copied in this process so far, on all threads.
std::uint64_t copied_bytes();

}  // namespace levada
