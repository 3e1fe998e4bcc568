#include "levada/base/copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "levada/base/bytes.h"

namespace levada {
namespace {

std::atomic<std::uint64_t> copied{0};

// With a constant size, each memcpy is one load and one store.
template <std::size_t Size>
void gather(std::byte* to, const std::byte* from, std::size_t runs, std::ptrdiff_t stride) {
  for (std::size_t i = 0; i < runs; ++i) {
    std::memcpy(to + i * Size, from + static_cast<std::ptrdiff_t>(i) * stride, Size);
  }
}

#ifdef __SSE2__
constexpr std::size_t cache_line = 64;

/// Copies whole cache lines; `to` is aligned to one.
void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (const std::byte* const end = from + lines * cache_line; from != end; from += cache_line, to += cache_line) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
  }
  _mm_sfence();  // the stores above are visible before those that follow
}
#endif

void copy_run(std::byte* to, const std::byte* from, std::size_t bytes, [[maybe_unused]] CopyMode mode) {
#ifdef __SSE2__
  if (mode == CopyMode::non_temporal && bytes >= 64 * cache_line) {
    const std::size_t head =
        align_up(reinterpret_cast<std::uintptr_t>(to), cache_line) - reinterpret_cast<std::uintptr_t>(to);
    const std::size_t body = (bytes - head) / cache_line * cache_line;
    std::memcpy(to, from, head);
    stream_lines(to + head, from + head, body / cache_line);
    std::memcpy(to + head + body, from + head + body, bytes - head - body);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode) {
  if (bytes == 0) return;
  copy_run(to, from, bytes, mode);
  copied.fetch_add(bytes, std::memory_order_relaxed);
}

void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride, CopyMode mode) {
  if (run_bytes == 0) return;
  switch (run_bytes) {
    case 1: gather<1>(to, from, runs, stride); break;
    case 2: gather<2>(to, from, runs, stride); break;
    case 4: gather<4>(to, from, runs, stride); break;
    case 8: gather<8>(to, from, runs, stride); break;
    case 16: gather<16>(to, from, runs, stride); break;
    default:
      for (std::size_t i = 0; i < runs; ++i) {
        copy_run(to + i * run_bytes, from + static_cast<std::ptrdiff_t>(i) * stride, run_bytes, mode);
      }
  }
  copied.fetch_add(run_bytes * runs, std::memory_order_relaxed);
}

std::uint64_t copied_bytes() {
  return copied.load(std::memory_order_relaxed);
}

}  // namespace levada
