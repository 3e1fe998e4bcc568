// Memory that processes share: files without a name, and their mappings.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "levada/base/unique_fd.h"

namespace levada::shm {

/// "memfd_create: Too many open files": the call that failed and errno's text.
std::string system_error(const char* call, int error);

/// A stretch of address space, unmapped when its owner goes.
class Mapping {
 public:
  enum class Access { read, write, write_privately };

  Mapping() = default;
  /// Maps the first `bytes` of `file`, shared or, for write_privately, so that this process alone sees what it writes;
  /// used only as it is touched, and left out of core dumps. Throws EngineError.
  Mapping(const UniqueFd& file, std::size_t bytes, Access access);
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, {})), only_in_(std::exchange(other.only_in_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(only_in_, other.only_in_);
    return *this;
  }
  ~Mapping();

  /// Unmaps it in children that are forked from now on: one that reads it dies by SIGSEGV, instead of seeing the memory
  /// change when its owner uses it again.
  void hide_from_children();

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  /// Where `address` lies in it; at least size() for one that does not.
  std::uint64_t offset_of(const std::byte* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(data());
  }
  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
  pid_t only_in_ = 0;  ///< the process that has it, if forked children have not; else 0
};

/// A file of `bytes` zero bytes without a name, that nobody can resize and that takes memory only where it is written.
/// Throws EngineError.
UniqueFd make_memory_file(const char* label, std::size_t bytes);

/// A second descriptor of `file`, through which it cannot be mapped writable. Without /proc it can, until
/// seal_unless_read_only(). Throws EngineError.
UniqueFd reopen_read_only(const UniqueFd& file);

/// To be called with that descriptor once the file's owner has mapped it: from now on nobody can map it writable.
/// Throws EngineError.
void seal_unless_read_only(const UniqueFd& file);

/// Throws EngineError unless `file` has `bytes` bytes and cannot shrink: else reading it could kill the process.
void expect_memory_file(const UniqueFd& file, std::size_t bytes, const std::string& whose);

}  // namespace levada::shm
