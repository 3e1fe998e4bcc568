// The only functions that copy payload. They count the bytes, from which benchmarks report copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// How a copy uses the caches.
enum class CopyMode : std::uint8_t {
  cached,        ///< the bytes written last stay cached, for a reader that follows soon
  non_temporal,  ///< if the CPU can, bypasses the caches and does not first read the lines that it overwrites
};

/// Slightly more than this many recently written bytes are still in a cache near the core that wrote them.
inline constexpr std::uint64_t cached_write_bytes = std::uint64_t{4} << 20;

/// Returns how to copy `bytes` that belong together, none of which is read before the last is written. Above
/// cached_write_bytes, a non-temporal copy takes about two thirds of the time.
constexpr CopyMode copy_mode_for(std::uint64_t bytes) {
  return bytes > cached_write_bytes ? CopyMode::non_temporal : CopyMode::cached;
}

/// memcpy for payload, counted in copied_bytes(). Engines and transfer copy payload only through these functions.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode = CopyMode::cached);

/// Copies `runs` runs of `run_bytes` each, which begin `stride` bytes apart at `from` (zero and negative are fine),
/// contiguously to `to`. Counts all their bytes as one copy.
void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride, CopyMode mode = CopyMode::cached);

/// Returns the bytes that these functions have copied in this process so far, on all threads.
std::uint64_t copied_bytes();

}  // namespace levada
