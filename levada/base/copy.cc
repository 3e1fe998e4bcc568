#include "levada/base/copy.h"

#include <atomic>
#include <cstring>

namespace levada {
namespace {

std::atomic<std::uint64_t> copied{0};

// With the size a constant, each memcpy is one load and one store.
template <std::size_t Size>
void gather(std::byte* to, const std::byte* from, std::size_t runs, std::ptrdiff_t stride) {
  for (std::size_t i = 0; i < runs; ++i) {
    std::memcpy(to + i * Size, from + static_cast<std::ptrdiff_t>(i) * stride, Size);
  }
}

}  // namespace

void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  copied.fetch_add(bytes, std::memory_order_relaxed);
}

void copy_payload_strided(std::byte* to, const std::byte* from, std::size_t run_bytes, std::size_t runs,
                          std::ptrdiff_t stride) {
  if (run_bytes == 0) return;
  switch (run_bytes) {
    case 1: gather<1>(to, from, runs, stride); break;
    case 2: gather<2>(to, from, runs, stride); break;
    case 4: gather<4>(to, from, runs, stride); break;
    case 8: gather<8>(to, from, runs, stride); break;
    case 16: gather<16>(to, from, runs, stride); break;
    default:
      for (std::size_t i = 0; i < runs; ++i) {
        std::memcpy(to + i * run_bytes, from + static_cast<std::ptrdiff_t>(i) * stride, run_bytes);
      }
  }
  copied.fetch_add(run_bytes * runs, std::memory_order_relaxed);
}

std::uint64_t copied_bytes() {
  return copied.load(std::memory_order_relaxed);
}

}  // namespace levada
