// Memory for samples, used again.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "levada/tensor/tensor.h"

namespace levada {

/// Gives pieces of memory for as long as somebody holds them and keeps what comes back for the next: memory touched for
/// the first time costs as much as ten copies. Pieces are 64-byte aligned and come in four sizes per power of two. What
/// is kept and what is in use are together never more than has been in use at one time. Any thread; pieces outlive it.
class SampleMemory {
 public:
  SampleMemory();

  /// Content unset.
  struct Piece {
    std::byte* data = nullptr;
    std::shared_ptr<const void> owner;
  };
  Piece allocate(std::uint64_t bytes);
  /// Gives what is kept back to the system.
  void trim();
  std::uint64_t kept_bytes() const;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace levada
