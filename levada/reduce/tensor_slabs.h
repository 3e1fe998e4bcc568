// The slabs in which a Bucketer makes tensors, so that enqueueing them copies nothing. Private to this module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "levada/reduce/slab.h"

namespace levada {

/// One thread at a time.
class TensorSlabs {
 public:
  /// `capacity`: size of a bucket in bytes.
  explicit TensorSlabs(std::size_t capacity) : capacity_(capacity) {}

  /// The fill level of the buckets of a group and dtype.
  struct FillLevel {
    std::uint64_t open = 0;   ///< bytes in the open bucket
    std::uint64_t usual = 0;  ///< bytes of an earlier bucket
  };
  /// Returns the slab for the next tensor of a group and dtype. All tensors of a slab go to the same bucket if they are
  /// enqueued in the order in which they are made. `make`: returns a slab with room for that many bytes.
  std::shared_ptr<Slab> next(const Engine& group, DType dtype, std::size_t bytes, const FillLevel& filled,
                             const std::function<std::shared_ptr<Slab>(std::size_t)>& make);
  /// Returns the slab in which a tensor was made, if its enter_next() would enter that tensor; else null.
  std::shared_ptr<Slab> find(const Engine& group, const TensorView& tensor) const;
  /// Makes no more tensors in the existing slabs.
  void end() { open_slabs_.clear(); }
  /// Forgets the group, whose address may be reused by another one.
  void leave(const Engine& group);

  /// Returns the size of a slab whose first input has `first` bytes. `filled`: bytes in the bucket so far, including
  /// that input. `usual`: bytes of an earlier bucket like it. As a result, a bucket takes at most twice the memory that
  /// it needs.
  std::size_t slab_bytes(std::size_t first, std::uint64_t filled, std::uint64_t usual) const;

 private:
  struct OpenSlab {
    const Engine* group = nullptr;
    DType dtype;
    std::shared_ptr<Slab> slab = nullptr;
    std::uint64_t bucket_bytes = 0;  ///< size of the bucket that its tensors will go to
  };

  std::size_t capacity_;
  std::vector<OpenSlab> open_slabs_;
  std::map<const std::byte*, std::weak_ptr<Slab>> slabs_;  ///< by address
};

}  // namespace levada
