#include "levada/engine/shm/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "levada/base/error.h"

namespace levada::shm {
namespace {
constexpr unsigned noexec_seal = 8;  // MFD_NOEXEC_SEAL of Linux 6.3; vm.memfd_noexec=2 refuses files without it

int create_memory_file(const char* label) {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int file = ::memfd_create(label, flags | noexec_seal);
  return file < 0 && errno == EINVAL ? ::memfd_create(label, flags) : file;
}
}  // namespace

std::string system_error(const char* call, int error) {
  return fmt::format("{}: {}", call, std::strerror(error));
}

Mapping::Mapping(const UniqueFd& file, std::size_t bytes, Access access) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  const int sharing = access == Access::write_privately ? MAP_PRIVATE : MAP_SHARED;
  void* at = ::mmap(nullptr, bytes, protection, sharing | MAP_NORESERVE, file.get(), 0);
  if (at == MAP_FAILED) {
    throw EngineError(
        fmt::format("cannot map {} of shared memory ({}); allow more address space (ulimit -v), or "
                    "reduce the shm engine's memory_bytes",
                    bytes, system_error("mmap", errno)));
  }
  ::madvise(at, bytes, MADV_DONTDUMP);
  memory_ = {static_cast<std::byte*>(at), bytes};
}

Mapping::~Mapping() {
  // In a forked child, something else may be mapped at this address by now.
  const bool is_here = only_in_ == 0 || only_in_ == ::getpid();
  if (!memory_.empty() && is_here) ::munmap(memory_.data(), memory_.size());
}

void Mapping::hide_from_children() {
  if (::madvise(memory_.data(), memory_.size(), MADV_DONTFORK) == 0) only_in_ = ::getpid();
}

UniqueFd make_memory_file(const char* label, std::size_t bytes) {
  UniqueFd file(create_memory_file(label));
  if (!file) {
    throw EngineError(
        fmt::format("cannot create shared memory ({}); the shm engine needs Linux memfd_create and a free "
                    "file descriptor (ulimit -n)",
                    system_error("memfd_create", errno)));
  }
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    throw EngineError(fmt::format("cannot size shared memory to {} bytes ({}); raise the file size limit (ulimit -f)",
                                  bytes, system_error("ftruncate", errno)));
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw EngineError(fmt::format("cannot seal shared memory ({})", system_error("fcntl", errno)));
  }
  return file;
}

UniqueFd reopen_read_only(const UniqueFd& file) {
  UniqueFd same(::open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!same) same = UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (!same) {
    throw EngineError(fmt::format("cannot create shared memory ({}); raise the number of open files (ulimit -n)",
                                  system_error("fcntl", errno)));
  }
  return same;
}

void seal_unless_read_only(const UniqueFd& file) {
  // Add F_SEAL_FUTURE_WRITE only if necessary, because it also prevents returning pages to the system (EPERM).
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY) return;
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    throw EngineError(fmt::format("cannot protect shared memory from being written by other ranks ({}); mount /proc",
                                  system_error("fcntl", errno)));
  }
}

void expect_memory_file(const UniqueFd& file, std::size_t bytes, const std::string& whose) {
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (::fstat(file.get(), &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      status.st_size != static_cast<off_t>(bytes)) {
    throw EngineError(
        fmt::format("{} is not a sealed memory file of {} bytes; do all ranks run the same Levada?", whose, bytes));
  }
}

}  // namespace levada::shm
