// The one way in which payload is copied, counted: what a benchmark reports as copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// What a copy leaves in the caches.
enum class CopyMode : std::uint8_t {
  cached,        ///< what was written last stays cached for a reader that follows soon
  non_temporal,  ///< where the processor can, it is written to memory, and what it overwrites is not read first
};

/// Little more than this, of what is written at a time, is still in a cache near the core that wrote it.
inline constexpr std::uint64_t cached_write_bytes = std::uint64_t{4} << 20;

/// Returns how to copy `bytes` that belong together, of which none is read before the last is written. Above that
/// size, a non-temporal copy takes about two thirds of the time.
constexpr CopyMode copy_mode_for(std::uint64_t bytes) {
  return bytes > cached_write_bytes ? CopyMode::non_temporal : CopyMode::cached;
}

/// memcpy of payload, added to copied_bytes(). Engines and transfer copy payload through these alone.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode = CopyMode::cached);

/// Copies `runs` runs of `run_bytes` each, which begin `stride` bytes apart at `from` (zero and negative are fine),
/// side by side to `to`; counted as one copy of all their bytes.
void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride, CopyMode mode = CopyMode::cached);

/// Bytes that these have carried in this process so far, by all threads.
std::uint64_t copied_bytes();

}  // namespace levada
