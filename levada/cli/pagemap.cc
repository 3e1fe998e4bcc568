#include "levada/cli/pagemap.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "levada/base/unique_fd.h"

namespace levada::cli {
namespace {

// As in the kernel's include/uapi/linux/fs.h, which is newer than the headers that may be installed here.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct ScanArguments {
  std::uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages;
  std::uint64_t inverted, all_of, any_of, returned;
};
constexpr std::uint64_t page_is_present = 1u << 3;

}  // namespace

std::string try_pagemap_scan() {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return std::strerror(errno);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::strerror(errno);
  std::memset(memory, 1, page);
  PageRegion region{};
  ScanArguments scan{};
  scan.size = sizeof scan;
  scan.start = reinterpret_cast<std::uintptr_t>(memory);
  scan.end = scan.start + page;
  scan.regions = reinterpret_cast<std::uintptr_t>(&region);
  scan.region_count = 1;
  scan.all_of = page_is_present;
  scan.returned = page_is_present;
  const int found = ::ioctl(pagemap.get(), _IOWR('f', 16, ScanArguments), &scan);
  const int error = errno;
  ::munmap(memory, page);
  if (found < 0) return error == ENOTTY ? "this kernel does not have it" : std::strerror(error);
  return found == 1 ? "yes" : "it does not find a written page";
}

}  // namespace levada::cli
