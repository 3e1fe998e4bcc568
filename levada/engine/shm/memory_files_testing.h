// The memory files that this process has open. For tests only.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>

namespace levada::shm::test {

struct FileCount {
  int all = 0;
  int writable = 0;  ///< number that can be mapped shared and writable
};

/// Counts this process's descriptors of sealed memory files of `bytes`.
inline FileCount count_memory_files(std::size_t bytes) {
  constexpr int descriptors = 256;
  FileCount count;
  for (int fd = 0; fd < descriptors; ++fd) {
    struct stat status {};
    if (::fcntl(fd, F_GET_SEALS) <= 0 || ::fstat(fd, &status) != 0) continue;
    if (status.st_size != static_cast<off_t>(bytes)) continue;
    ++count.all;
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) continue;
    ::munmap(at, bytes);
    ++count.writable;
  }
  return count;
}

}  // namespace levada::shm::test
