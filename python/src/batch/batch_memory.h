// Memory for the tensors of Python's batches, from which a feed can send them without a copy.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/tensor/tensor.h"
#include "python/src/base/process.h"

namespace levada::python {

/// Allocates Blocks of an engine, one for each batch that a thread makes. A batch ends when one of its tensors is found
/// among those passed to a feed; the next batch's Block is at least as large. If there is no room, and in a forked
/// child, tensors are in ordinary memory. Thread-safe; never blocks.
class BatchMemory {
 public:
  explicit BatchMemory(const std::shared_ptr<Engine>& engine) : engine_(engine) {}

  /// Begins a batch of the calling thread, whose tensors have `bytes` in total. Its Block has `bytes`, or the size
  /// expected from previous batches if that is larger.
  void begin(std::size_t bytes);
  /// Returns a writable, uninitialized tensor. Throws InvalidArgument for an invalid shape.
  Tensor empty(DType dtype, const Shape& shape);

  struct Place {
    std::shared_ptr<Block> block;
    std::size_t used = 0;  ///< bytes taken by tensors
  };
  /// Returns the Block that contains `address` and ends its batch. Returns nothing if no Block contains it.
  std::optional<Place> find(const std::byte* address);

 private:
  struct Batch {
    std::shared_ptr<Block> open;  ///< while tensors may still be added
    std::weak_ptr<Block> block;   ///< the same block, while any tensor uses it
    std::size_t size = 0;         ///< size of the block
    std::size_t used = 0;
    std::size_t asked = 0;  ///< bytes of all tensors, including those outside of the block
  };

  static bool is_idle(const std::shared_ptr<Batch>& batch);
  /// Returns the size of the batch to start before a tensor of `bytes`, or nothing if a batch is in progress.
  std::optional<std::size_t> to_begin_with(std::size_t bytes);
  void start(std::size_t bytes);
  std::optional<Block> allocate(std::size_t bytes) const;
  bool is_usable() const { return current_process() == process_; }

  const pid_t process_ = current_process();
  std::weak_ptr<Engine> engine_;
  std::mutex mutex_;  // guards the members below
  std::unordered_map<std::thread::id, std::shared_ptr<Batch>> making_;
  std::map<const std::byte*, std::shared_ptr<Batch>> batches_;  ///< by the start of their block
  std::size_t expected_ = 0;                                    ///< expected bytes of the next batch
};

/// Owners whose destructors take the GIL, set aside by threads that should not wait for it. Thread-safe.
class DeferredOwners {
 public:
  /// Returns a stand-in for `owner`, which is set aside when the last copy of the result is destroyed.
  static std::shared_ptr<const void> later(const std::shared_ptr<DeferredOwners>& spent,
                                           std::shared_ptr<const void> owner);
  /// Destroys the owners set aside. With the GIL.
  void clear();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace levada::python
