#include "levada/engine/memory_source.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/memory_limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace levada {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t max_reservation = std::uint64_t{1} << 44;  // 16 TiB of the 128 TiB of a process
constexpr int reserved_only = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

bool populate_pages(std::span<std::byte> memory) noexcept {
  int result = ::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
  while (result != 0 && errno == EINTR) result = ::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
  if (result == 0 || errno != EINVAL) return result == 0;
  for (std::size_t at = 0; at < memory.size(); at += page_bytes) {
    *reinterpret_cast<volatile char*>(memory.data() + at) = 0;  // before Linux 5.14
  }
  return true;
}

HeapSource::HeapSource(std::uint64_t bytes) {
  bytes = std::min({bytes, max_reservation, unused_address_space() / 8}) / page_bytes * page_bytes;
  for (; bytes > 0; bytes = bytes / 2 / page_bytes * page_bytes) {
    // Inaccessible pages are not charged, even if the system does not overcommit memory.
    void* at = ::mmap(nullptr, bytes, PROT_NONE, reserved_only, -1, 0);
    if (at == MAP_FAILED) continue;
    memory_ = {static_cast<std::byte*>(at), bytes};
    return;
  }
  throw EngineError(fmt::format(
      "cannot reserve address space for an engine's blocks (mmap: {}); allow more address space (ulimit -v), "
      "or set memory_bytes to at least one page",
      std::strerror(errno)));
}

HeapSource::~HeapSource() {
  ::munmap(memory_.data(), memory_.size());
}

bool HeapSource::populate(Interval interval) noexcept {
  const auto part = memory_.subspan(interval.begin, interval.size());
  return ::mprotect(part.data(), part.size(), PROT_READ | PROT_WRITE) == 0 && populate_pages(part);
}

bool HeapSource::discard(Interval interval) noexcept {
  // Map the memory anew, because MADV_DONTNEED would leave it charged on systems that do not overcommit.
  void* const at = memory_.data() + interval.begin;
  return ::mmap(at, interval.size(), PROT_NONE, reserved_only | MAP_FIXED, -1, 0) == at;
}

}  // namespace levada
