// Where a Bucketer makes the tensors that it gives out, so that enqueueing does not copy them. Private to this module.
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
  /// `capacity`: bytes of a bucket.
  explicit TensorSlabs(std::size_t capacity) : capacity_(capacity) {}

  /// What there is of a group and dtype already.
  struct Filled {
    std::uint64_t open = 0;   ///< bytes in the open bucket
    std::uint64_t usual = 0;  ///< of an earlier bucket
  };
  /// Returns the slab for the next tensor of a group and dtype. All tensors of a slab go to the same bucket, if they
  /// are enqueued in the order in which they are made. `make`: returns a slab with room for that many bytes.
  std::shared_ptr<Slab> next(const Engine& group, DType dtype, std::size_t bytes, const Filled& filled,
                             const std::function<std::shared_ptr<Slab>(std::size_t)>& make);
  /// Returns the slab in which a tensor was made, if enter_next() of that slab enters it; else null.
  std::shared_ptr<Slab> find(const Engine& group, const TensorView& tensor) const;
  /// Makes no more tensors in the slabs that there are.
  void end() { making_.clear(); }
  /// Forgets the group, whose address another one may get.
  void leave(const Engine& group);

  /// Returns the size of a slab in which an input of `first` bytes comes first. `filled`: the bytes of the bucket so
  /// far, with that input. `usual`: those of an earlier bucket like it. So a bucket takes at most twice what it needs.
  std::size_t slab_bytes(std::size_t first, std::uint64_t filled, std::uint64_t usual) const;

 private:
  struct Making {
    const Engine* group = nullptr;
    DType dtype;
    std::shared_ptr<Slab> slab = nullptr;
    std::uint64_t bucket_bytes = 0;  ///< of the bucket that its tensors will go to
  };

  std::size_t capacity_;
  std::vector<Making> making_;
  std::map<const std::byte*, std::weak_ptr<Slab>> slabs_;  ///< by address
};

}  // namespace levada
