// The one way in which payload is copied, counted: what a benchmark reports as copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// memcpy of payload, added to copied_bytes(). Engines and transfer copy payload through these alone.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes);

/// copy_payload() past the caches, where the processor can: for more bytes than caches hold, it takes two thirds of the
/// time, since what is overwritten is not read first; who looks at `to` soon after reads it out of memory.
void copy_payload_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

/// Copies `runs` runs of `run_bytes` each, which begin `stride` bytes apart at `from` (zero and negative are fine),
/// side by side to `to`; counted as one copy of all their bytes.
void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride);

/// Bytes that these have carried in this process so far, by all threads.
std::uint64_t copied_bytes();

}  // namespace levada
