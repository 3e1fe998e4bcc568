// Engine memory in which inputs are made, or into which they are copied, and which is then sent as one message.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "levada/reduce/bucket_message.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Memory for consecutive inputs of a bucket. It is reserved input by input, and the inputs are entered into the bucket
/// in the same order: those entered so far are a prefix, which becomes the message. One thread at a time, but any
/// thread may destroy a tensor that make_tensor() has returned.
class Slab : public std::enable_shared_from_this<Slab> {
 public:
  /// Inputs of a bucket are sent in messages of this size at most, unless one input alone is larger.
  static constexpr std::size_t message_bytes = std::size_t{4} << 20;

  /// Returns the size of a block with room for `bytes` of inputs, if all but the last one fill multiples of 64 bytes.
  static std::size_t block_bytes(std::size_t bytes);

  /// `group`: reduces the inputs.
  Slab(const Engine& group, Block block);

  /// The memory's first byte, by which to find the slab in which a tensor was made.
  const std::byte* data() const { return block_->memory().data(); }

  bool has_room(std::size_t bytes) const;
  /// Reserves memory for an input, for which there must be room.
  std::byte* reserve(std::size_t bytes);
  /// The same, as a writable tensor, which keeps its memory until it is entered or destroyed, also after send().
  Tensor make_tensor(DType dtype, const Shape& shape);

  /// Returns whether `input` is the whole tensor, in whatever shape, that make_tensor() has returned for `group`, and
  /// whether enter_next() enters it.
  bool is_next(const Engine& group, const TensorView& input) const;
  /// Enters the first input that is reserved and not entered.
  void enter_next();
  std::size_t num_entered() const { return num_entered_; }
  /// Returns whether all that was reserved has been entered.
  bool is_all_entered() const { return num_entered_ == inputs_.size(); }

  /// Returns what has been entered. Only is_sent() and is_all_entered() may be called afterwards.
  BucketMessage send();
  bool is_sent() const { return block_ == nullptr; }

 private:
  /// What a tensor keeps until it is entered.
  struct Owner {
    std::shared_ptr<const Slab> slab;
    std::shared_ptr<const Block> block;  ///< which send() takes from the slab
  };
  struct Input {
    std::size_t begin = 0, bytes = 0;
    std::weak_ptr<Owner> owner = {};  ///< of its tensor, if make_tensor() returned one
  };

  const Engine* group_;
  std::shared_ptr<const Block> block_;
  std::vector<Input> inputs_;
  std::size_t num_entered_ = 0;
  std::size_t end_ = MessageHeader::bytes;  ///< of all inputs
};

}  // namespace levada
