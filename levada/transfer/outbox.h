// The sending end: a batch and its moves become one message an audience.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/plan/plan.h"
#include "levada/tree/codec.h"

namespace levada {

/// Gives a Block of at least so many bytes, waiting for it if need be.
using AllocateBlock = std::function<Block(std::size_t bytes)>;

/// Engine memory for a producer: its tensors lie in one Block, laid out so that the Block can be sent as it is. What
/// does not fit any more comes from the heap. One thread at a time.
class BlockMemory final : public Memory {
 public:
  explicit BlockMemory(AllocateBlock allocate) : allocate_(std::move(allocate)) {}

  void reserve(std::size_t bytes) override;
  Tensor empty(DType dtype, const Shape& shape) override;

  /// The Block so far, kept alive by the tensors in it; null if none was asked for.
  const std::shared_ptr<Block>& block() const { return block_; }
  /// Where the message's body can begin: behind the last tensor.
  std::size_t used() const { return used_; }

 private:
  AllocateBlock allocate_;
  std::shared_ptr<Block> block_;
  std::size_t used_ = 0;
};

/// A message ready to be published.
struct Packed {
  Block block;
  std::size_t bytes = 0;
};

/// Sends trees to one audience over one channel. One thread at a time.
class Outbox {
 public:
  Outbox(std::shared_ptr<Engine> engine, std::shared_ptr<Channel> channel);
  Channel& channel() { return *channel_; }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
  SchemaCache sent_;
};

}  // namespace levada
