// Where Python makes the tensors of its batches, so that a feed can send them as they lie.
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

/// Blocks of an engine, one for each batch that a thread makes. A batch ends when one of its tensors is found in what a
/// feed is given; the next one's Block is as large as that batch was. Where there is no room, and in a forked child,
/// tensors lie in ordinary memory. Any thread; never blocks.
class BatchMemory {
 public:
  explicit BatchMemory(const std::shared_ptr<Engine>& engine) : engine_(engine) {}

  /// Begins a batch of the calling thread's, whose tensors have `bytes` in all. Its Block is no smaller than those
  /// before.
  void begin(std::size_t bytes);
  /// Writable, content unset. Throws InvalidArgument for a shape that is none.
  Tensor empty(DType dtype, const Shape& shape);

  struct Place {
    std::shared_ptr<Block> block;
    std::size_t used = 0;  ///< so much of it is taken by tensors
  };
  /// The Block in which `address` lies, if it is one of these; its batch ends.
  std::optional<Place> find(const std::byte* address);

 private:
  struct Batch {
    std::shared_ptr<Block> open;  ///< as long as tensors may join
    std::weak_ptr<Block> block;   ///< the same, as long as tensors live in it
    std::size_t size = 0;         ///< of the block
    std::size_t used = 0;
    std::size_t asked = 0;  ///< bytes of tensors, wherever they lie
  };

  static bool is_idle(const std::shared_ptr<Batch>& batch);
  /// For how many bytes a batch has to be started before a tensor of `bytes`; empty where one is being made.
  std::optional<std::size_t> to_begin_with(std::size_t bytes);
  void start(std::size_t bytes);
  std::optional<Block> allocate(std::size_t bytes) const;
  bool is_usable() const { return current_process() == process_; }

  const pid_t process_ = current_process();
  std::weak_ptr<Engine> engine_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::thread::id, std::shared_ptr<Batch>> making_;
  std::map<const std::byte*, std::shared_ptr<Batch>> batches_;  ///< by where their block begins
  std::size_t expected_ = 0;                                    ///< bytes of the next batch
};

/// Owners whose end takes the GIL, put aside by threads that should not wait for it. Any thread.
class Spent {
 public:
  /// Stands for `owner`, which is put aside when the last copy of what this gives ends.
  static std::shared_ptr<const void> later(const std::shared_ptr<Spent>& spent, std::shared_ptr<const void> owner);
  /// Ends what is put aside. With the GIL.
  void clear();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace levada::python
