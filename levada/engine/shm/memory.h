// Memory that processes share, as unnamed files and mappings of them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "levada/base/unique_fd.h"

namespace levada::shm {

/// Returns the failed call and errno's text: "memfd_create: Too many open files".
std::string system_error(const char* call, int error);

/// A range of address space that the destructor unmaps.
class Mapping {
 public:
  enum class Access { read, write, write_privately };

  Mapping() = default;
  /// Maps the first `bytes` bytes of `file`: shared, or, for write_privately, so that only this process sees its
  /// writes. Only touched pages take memory. The mapping is excluded from core dumps. Throws EngineError.
  Mapping(const UniqueFd& file, std::size_t bytes, Access access);
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, {})), only_in_(std::exchange(other.only_in_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(only_in_, other.only_in_);
    return *this;
  }
  ~Mapping();

  /// Excludes the mapping from children forked from now on. A child that reads it dies by SIGSEGV instead of seeing the
  /// memory change when its owner reuses it.
  void hide_from_children();

  std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  /// Returns the offset of `address` in the mapping, or a number of at least size() if it is outside.
  std::uint64_t offset_of(const std::byte* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(data());
  }
  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
  pid_t only_in_ = 0;  ///< the only process that has the mapping if it is hidden from forked children; otherwise 0
};

/// Returns an unnamed file of `bytes` zero bytes. It cannot be resized, and only written pages take memory. Throws
/// EngineError.
UniqueFd make_memory_file(const char* label, std::size_t bytes);

/// Returns a second descriptor of `file` through which the file cannot be mapped writable. Without /proc, it can be
/// mapped writable until seal_unless_read_only() is called. Throws EngineError.
UniqueFd reopen_read_only(const UniqueFd& file);

/// Prevents new writable mappings of the file unless `file` is already read-only. Call it with the descriptor from
/// reopen_read_only(), after the file's owner has mapped the file. Throws EngineError.
void seal_unless_read_only(const UniqueFd& file);

/// Throws EngineError unless `file` has `bytes` bytes and cannot shrink. Reading a file that shrinks would kill the
/// process.
void expect_memory_file(const UniqueFd& file, std::size_t bytes, const std::string& whose);

}  // namespace levada::shm
