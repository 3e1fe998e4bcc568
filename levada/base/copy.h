// The one way in which payload is copied, counted: what a benchmark reports as copies per byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levada {

/// memcpy of payload, added to copied_bytes(). Engines and transfer copy payload through this alone.
void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes);

/// Bytes that copy_payload() has carried in this process so far, by all threads.
std::uint64_t copied_bytes();

}  // namespace levada
