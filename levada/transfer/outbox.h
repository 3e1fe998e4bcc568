// The sending end of a stream of trees: turns a portion of a batch into one message to one audience.
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

/// Engine memory for a producer. Places the producer's tensors in one Block, in a layout in which the Block can be sent
/// as it is. Allocates tensors that do not fit on the heap. Used by one thread at a time.
class BlockMemory final : public Memory {
 public:
  explicit BlockMemory(AllocateBlock allocate) : allocate_(std::move(allocate)) {}
  /// Returns the size of a Block for tensors of `bytes` in total. The first tensor is at message_prefix_bytes.
  static std::size_t block_bytes(std::size_t bytes);

  void reserve(std::size_t bytes) override;
  Tensor empty(DType dtype, const Shape& shape) override;

  /// Continues in `block`, whose first `used` bytes are taken by tensors that another BlockMemory placed in it.
  void adopt(std::shared_ptr<Block> block, std::size_t used);
  /// Returns the batch with all its tensors in this memory. Copies the tensors that are outside it, or all of them if
  /// anything other than the batch also holds the Block. If the allocation throws, `batch` is unchanged.
  FlatTree copy_in(FlatTree&& batch, CopyMode way = CopyMode::cached);

  /// Returns the Block in use, which the tensors in it keep alive, or null if none has been requested.
  const std::shared_ptr<Block>& block() const { return block_; }
  /// Returns the offset after the last tensor.
  std::size_t used() const { return used_; }

 private:
  AllocateBlock allocate_;
  std::shared_ptr<Block> block_;
  std::size_t used_ = 0;
};

/// A message that is ready to be published.
struct PackedMessage {
  Block block;
  std::size_t bytes = 0;
};

/// A message whose memory has been allocated, so that completing it cannot fail.
struct PendingMessage {
  Block block;
  std::vector<Leaf> leaves;
  std::vector<PlacedTensor> placed;  ///< their positions in the block
  std::vector<std::size_t> to_copy;  ///< indexes of tensors that have yet to be copied to their positions
  std::size_t body = 0;              ///< offset of the body, which follows the tensors
  bool with_schema = false;
};

/// Makes the messages of one channel. Used by one thread at a time.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Allocates the message that carries `portion` of `batch` and an envelope of `envelope_bytes`. If the portion
  /// consists of whole tensors in the Block of `memory`, and only `batch` and `memory` hold that Block, it becomes the
  /// message and nothing is copied. Pass null if other channels need the same tensors. A prepared message must be
  /// completed or dropped before the next one is prepared.
  PendingMessage prepare(const FlatTree& batch, const Portion& portion, std::size_t envelope_bytes, BlockMemory* memory,
                         const AllocateBlock& allocate);
  /// Completes a message. The caller must publish it, because this Outbox from then on assumes that the receivers have
  /// its schema. The other arguments are as in prepare().
  PackedMessage complete(PendingMessage pending, const FlatTree& batch, const Portion& portion, ByteView envelope,
                         CopyMode way);
  /// Calls prepare() and complete(). For callers that do nothing in between that can fail and copy only this message.
  PackedMessage pack(const FlatTree& batch, const Portion& portion, ByteView envelope, BlockMemory* memory,
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
