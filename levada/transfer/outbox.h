// The sending end: a batch and a portion of it become one message to one audience.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/engine.h"
#include "levada/transfer/portion.h"
#include "levada/tree/codec.h"

namespace levada {

/// Gives a Block of at least so many bytes, waiting for it if need be.
using AllocateBlock = std::function<Block(std::size_t bytes)>;

/// Engine memory for a producer: its tensors lie in one Block, laid out so that the Block can be sent as it is. What
/// does not fit any more comes from the heap. One thread at a time.
class BlockMemory final : public Memory {
 public:
  explicit BlockMemory(AllocateBlock allocate) : allocate_(std::move(allocate)) {}
  /// A Block for tensors of `bytes` in all has this size, and the first of them lies at message_prefix_bytes.
  static std::size_t block_bytes(std::size_t bytes);

  void reserve(std::size_t bytes) override;
  Tensor empty(DType dtype, const Shape& shape) override;

  /// Goes on in `block`, of which `used` bytes are taken by tensors that another one has placed there.
  void adopt(std::shared_ptr<Block> block, std::size_t used);
  /// Returns the batch with all its tensors in this memory: copies those that lie elsewhere, and all where others than
  /// the batch hold the Block too.
  FlatTree copy_in(FlatTree batch, CopyMode way = CopyMode::cached);

  /// The Block so far, kept alive by the tensors in it; null if none was asked for.
  const std::shared_ptr<Block>& block() const { return block_; }
  /// Where more can be written: behind the last tensor.
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

/// A message that has its memory: nothing is left to do that could fail.
struct PendingMessage {
  Block block;
  std::vector<Leaf> leaves;
  std::vector<PlacedTensor> placed;  ///< where they lie in the block ...
  std::vector<std::size_t> to_copy;  ///< ... once those of these numbers have been copied there
  std::size_t body = 0;              ///< where what follows them begins
  bool with_schema = false;
};

/// Makes the messages of one channel. One thread at a time.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  /// Allocates the message that carries `portion` of `batch`, and an envelope of so many bytes. When the tensors lie
  /// whole in the Block of `memory`, and nobody but `batch` and `memory` holds them, that Block becomes the message and
  /// nothing will be copied; pass null where other channels need the same tensors. A message that is prepared may be
  /// dropped; the next one is prepared once it has been completed or dropped.
  PendingMessage prepare(const FlatTree& batch, const Portion& portion, std::size_t envelope_bytes, BlockMemory* memory,
                         const AllocateBlock& allocate);
  /// Returns the message, which must be published: the receivers then have its schema. The other arguments as in
  /// prepare().
  Packed complete(PendingMessage pending, const FlatTree& batch, const Portion& portion, ByteView envelope,
                  CopyMode way);
  /// Both, where nothing else can fail between them and the message is all that is copied.
  Packed pack(const FlatTree& batch, const Portion& portion, ByteView envelope, BlockMemory* memory,
              const AllocateBlock& allocate) {
    return complete(prepare(batch, portion, envelope.size(), memory, allocate), batch, portion, envelope,
                    copy_mode_for(portion.tensor_bytes));
  }

  Channel& channel() { return *channel_; }

 private:
  std::shared_ptr<Channel> channel_;
  SchemaCache sent_;  ///< mirrors the one of the receivers, which see the same messages in the same order
};

}  // namespace levada
