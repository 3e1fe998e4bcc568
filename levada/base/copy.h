// The one way in which payload is copied, counted: what a benchmark reports as copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// What a copy leaves in the caches.
enum class CopyWay : std::uint8_t {
  through_caches,  ///< what was written last is still there for who reads it soon
  past_caches,     ///< where the processor can, it is written to memory, and what it overwrites is not read first
};

/// Of what is written in one go little more than this is still in a cache near the core that wrote it.
inline constexpr std::uint64_t caches_keep = std::uint64_t{4} << 20;

/// How to copy what belongs together: `bytes` in all, of which none is looked at much before the last is written. Past
/// the caches more than they keep takes about two thirds of the time.
constexpr CopyWay way_to_copy(std::uint64_t bytes) {
  return bytes > caches_keep ? CopyWay::past_caches : CopyWay::through_caches;
}

/// memcpy of payload, added to copied_bytes(). Engines and transfer copy payload through these alone.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes, CopyWay way = CopyWay::through_caches);

/// Copies `runs` runs of `run_bytes` each, which begin `stride` bytes apart at `from` (zero and negative are fine),
/// side by side to `to`; counted as one copy of all their bytes.
void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride, CopyWay way = CopyWay::through_caches);

/// Bytes that these have carried in this process so far, by all threads.
std::uint64_t copied_bytes();

}  // namespace levada
