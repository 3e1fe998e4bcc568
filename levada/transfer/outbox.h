// The sending end: turns a portion of a batch into one message to one audience.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/engine.h"
#include "levada/transfer/portion.h"
#include "levada/tree/codec.h"

namespace levada {

/// Returns a Block of at least `bytes`, waiting for it if necessary.
using AllocateBlock = std::function<Block(std::size_t bytes)>;

/// Engine memory for a producer. Its tensors are in one Block, laid out so that the Block can be sent as it is. Tensors
/// that no longer fit are allocated on the heap. Used by one thread at a time.
class BlockMemory final : public Memory {
 public:
  explicit BlockMemory(AllocateBlock allocate) : allocate_(std::move(allocate)) {}
  /// Returns the size of a Block for tensors of `bytes` in total. The first tensor is at message_prefix_bytes.
  static std::size_t block_bytes(std::size_t bytes);

  void reserve(std::size_t bytes) override;
  Tensor empty(DType dtype, const Shape& shape) override;

  /// Continues in `block`, whose first `used` bytes are taken by tensors that another BlockMemory placed in it.
  void adopt(std::shared_ptr<Block> block, std::size_t used);
  /// Returns the batch with all its tensors in this memory. Copies the tensors that are outside of it; copies all of
  /// them if anything other than the batch also holds the Block.
  FlatTree copy_in(FlatTree batch, CopyMode way = CopyMode::cached);

  /// Returns the Block in use, which the tensors in it keep alive; null if none has been requested.
  const std::shared_ptr<Block>& block() const { return block_; }
  /// Returns the offset after the last tensor.
  std::size_t used() const { return used_; }

 private:
  AllocateBlock allocate_;
  std::shared_ptr<Block> block_;
  std::size_t used_ = 0;
};

/// A message that is ready to be published.
struct Packed {
  Block block;
  std::size_t bytes = 0;
};

/// A message that has its memory: completing it cannot fail.
struct PendingMessage {
  Block block;
  std::vector<Leaf> leaves;
  std::vector<PlacedTensor> placed;  ///< their positions in the block
  std::vector<std::size_t> to_copy;  ///< indexes of those that have yet to be copied to their positions
  std::size_t body = 0;              ///< offset of the body, which follows the tensors
  bool with_schema = false;
};

/// Makes the messages of one channel. Used by one thread at a time.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Allocates the message that carries `portion` of `batch` and an envelope of `envelope_bytes`. If the tensors are
  /// whole in the Block of `memory`, and only `batch` and `memory` hold it, that Block becomes the message and nothing
  /// is copied; pass null if other channels need the same tensors. A prepared message may be dropped. It must be
  /// completed or dropped before the next one is prepared.
  PendingMessage prepare(const FlatTree& batch, const Portion& portion, std::size_t envelope_bytes, BlockMemory* memory,
                         const AllocateBlock& allocate);
  /// Returns the message, which must be published: this Outbox then assumes that the receivers have its schema. The
  /// other arguments are as in prepare().
  Packed complete(PendingMessage pending, const FlatTree& batch, const Portion& portion, ByteView envelope,
                  CopyMode way);
  /// Calls prepare() and complete(), for use if nothing else can fail between them and only this message is copied.
  Packed pack(const FlatTree& batch, const Portion& portion, ByteView envelope, BlockMemory* memory,
              const AllocateBlock& allocate) {
    return complete(prepare(batch, portion, envelope.size(), memory, allocate), batch, portion, envelope,
                    copy_mode_for(portion.tensor_bytes));
  }

  Channel& channel() { return *channel_; }

 private:
  std::shared_ptr<Channel> channel_;
  SchemaCache sent_;  ///< mirrors the receivers' cache: they see the same messages in the same order
};

}  // namespace levada
