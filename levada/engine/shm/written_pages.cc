#include "levada/engine/shm/written_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "levada/engine/shm/control.h"
#include "levada/engine/shm/memory.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace levada::shm {
namespace {

// Copied from the kernel's include/uapi/linux/fs.h, which may be newer than the installed headers.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct ScanArguments {
  std::uint64_t size, flags, start, end, walk_end, regions, region_count, max_pages;
  std::uint64_t inverted, all_of, any_of, returned;
};
constexpr std::uint64_t page_is_file = 1U << 2;
constexpr std::uint64_t page_is_present = 1U << 3;
constexpr std::uint64_t page_is_swapped = 1U << 4;

// Bits of an entry of /proc/self/pagemap.
constexpr std::uint64_t entry_is_file = std::uint64_t{1} << 61;
constexpr std::uint64_t entry_is_swapped = std::uint64_t{1} << 62;
constexpr std::uint64_t entry_is_present = std::uint64_t{1} << 63;

std::uint64_t address_of(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

/// Returns the bytes between two addresses of `memory`.
std::span<std::byte> part_of(std::span<std::byte> memory, std::uint64_t begin, std::uint64_t end) {
  return memory.subspan(begin - address_of(memory.data()), end - begin);
}

bool discard(std::span<std::byte> pages) {
  if (::madvise(pages.data(), pages.size(), MADV_DONTNEED) == 0) return true;
  return errno == EINVAL && ::madvise(pages.data(), pages.size(), MADV_DONTNEED_LOCKED) == 0;
}

}  // namespace

WrittenPages::WrittenPages(Mode mode)
    : pagemap_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)), mode_(mode == Mode::any ? Mode::scan : mode) {
  if (!pagemap_) {
    refusal_ = system_error("/proc/self/pagemap", errno);
    return;
  }
  refusal_ = probe();
  if (refusal_.empty() || mode != Mode::any) return;
  mode_ = Mode::pagemap;
  refusal_ = probe();
}

std::string WrittenPages::probe() {
  void* const at = ::mmap(nullptr, 3 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return system_error("mmap", errno);
  const std::span memory(static_cast<std::byte*>(at), 3 * page_bytes);
  memory[page_bytes] = std::byte{1};
  errno = 0;
  const auto found = find(memory);
  const int error = errno;
  const bool right = found && found->size() == 1 && found->front().data() == memory.data() + page_bytes &&
                     found->front().size() == page_bytes;
  ::munmap(at, memory.size());
  if (right) return {};
  if (error == ENOTTY) return "this kernel does not have it";
  return error != 0 ? std::strerror(error) : "it does not find a written page";
}

WrittenPages::Found WrittenPages::find(std::span<std::byte> memory) const {
  return mode_ == Mode::scan ? scan(memory) : read(memory);
}

WrittenPages::Found WrittenPages::scan(std::span<std::byte> memory) const {
  std::array<PageRegion, 256> regions{};
  ScanArguments arguments{};
  arguments.size = sizeof arguments;
  arguments.start = address_of(memory.data());
  arguments.end = arguments.start + memory.size();
  arguments.regions = reinterpret_cast<std::uintptr_t>(regions.data());
  arguments.region_count = regions.size();
  arguments.inverted = arguments.all_of = page_is_file;
  arguments.any_of = page_is_present | page_is_swapped;
  arguments.returned = page_is_file;
  std::vector<std::span<std::byte>> found;
  while (arguments.start < arguments.end) {
    const int count = ::ioctl(pagemap_.get(), _IOWR('f', 16, ScanArguments), &arguments);
    if (count < 0) return std::nullopt;
    for (int i = 0; i < count; ++i) {
      const PageRegion& region = regions[static_cast<std::size_t>(i)];
      found.push_back(part_of(memory, region.start, region.end));
    }
    if (arguments.walk_end <= arguments.start) return std::nullopt;
    arguments.start = arguments.walk_end;
  }
  return found;
}

WrittenPages::Found WrittenPages::read(std::span<std::byte> memory) const {
  std::array<std::uint64_t, 512> entries{};
  std::vector<std::span<std::byte>> found;
  const std::size_t pages = memory.size() / page_bytes;
  for (std::size_t first = 0; first < pages; first += entries.size()) {
    const std::size_t count = std::min(entries.size(), pages - first);
    const auto place = (address_of(memory.data()) / page_bytes + first) * sizeof(std::uint64_t);
    const auto bytes = static_cast<ssize_t>(count * sizeof(std::uint64_t));
    if (::pread(pagemap_.get(), entries.data(), count * sizeof(std::uint64_t), static_cast<off_t>(place)) != bytes) {
      return std::nullopt;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const bool has_memory = (entries[i] & (entry_is_present | entry_is_swapped)) != 0;
      if (has_memory && (entries[i] & entry_is_file) == 0) {
        found.push_back(memory.subspan((first + i) * page_bytes, page_bytes));
      }
    }
  }
  return found;
}

std::optional<std::size_t> WrittenPages::drop(std::span<std::byte> memory) const {
  const auto found = find(memory);
  if (!found) return std::nullopt;
  std::size_t pages = 0;
  for (const auto part : *found) {
    if (!discard(part)) return std::nullopt;
    pages += part.size() / page_bytes;
  }
  return pages;
}

}  // namespace levada::shm
