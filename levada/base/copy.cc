#include "levada/base/copy.h"

#include <atomic>
#include <cstring>

namespace levada {
namespace {
std::atomic<std::uint64_t> copied{0};
}

void copy_payload(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  copied.fetch_add(bytes, std::memory_order_relaxed);
}

std::uint64_t copied_bytes() {
  return copied.load(std::memory_order_relaxed);
}

}  // namespace levada
