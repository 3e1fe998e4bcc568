// Engine memory in which inputs are made or to which they are copied. It is then sent as one message.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "levada/reduce/bucket_message.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// Memory for consecutive inputs of a bucket. It is reserved input by input, and inputs are entered into the bucket in
/// the same order, so the entered ones are a prefix, which becomes the message. One thread at a time, but any thread
/// may destroy a tensor from make_tensor().
class Slab : public std::enable_shared_from_this<Slab> {
 public:
  /// Maximum size of the messages of a bucket, unless a single input is larger.
  static constexpr std::size_t message_bytes = std::size_t{4} << 20;

  /// Returns the block size needed for `bytes` of inputs, if all but the last one are multiples of 64 bytes.
  static std::size_t block_bytes(std::size_t bytes);

  /// `group`: the group that reduces the inputs.
  Slab(const Engine& group, Block block);

  /// Returns the first byte of the memory, which identifies the slab of a tensor.
  const std::byte* data() const { return block_->memory().data(); }

  /// Returns whether `group` reduces the inputs.
  bool belongs_to(const Engine& group) const { return group_ == &group; }

  bool has_room(std::size_t bytes) const;
  /// Reserves memory for an input. Requires has_room().
  std::byte* reserve(std::size_t bytes);
  /// Same as reserve(), but as a writable tensor. It keeps its memory until entered or destroyed, even after send().
  Tensor make_tensor(DType dtype, const Shape& shape);

  /// Returns whether `input` is a whole tensor, in whatever shape, that make_tensor() returned for `group`, and is the
  /// one that enter_next() would enter.
  bool is_next(const Engine& group, const TensorView& input) const;
  /// Enters the first input that is reserved but not entered.
  void enter_next();
  std::size_t num_entered() const { return num_entered_; }
  /// Returns whether all reserved inputs have been entered.
  bool is_all_entered() const { return num_entered_ == inputs_.size(); }

  /// Returns the entered inputs. Afterwards, only is_sent() and is_all_entered() may be called.
  BucketMessage send();
  bool is_sent() const { return block_ == nullptr; }

 private:
  /// Keeps a tensor's memory alive until the tensor is entered.
  struct Owner {
    std::shared_ptr<const Slab> slab;
    std::shared_ptr<const Block> block;  ///< stays alive after send() takes the slab's reference
  };
  struct Input {
    std::size_t begin = 0, bytes = 0;
    std::weak_ptr<Owner> owner = {};  ///< owner of its tensor, if make_tensor() returned one
  };

  const Engine* group_;
  std::shared_ptr<const Block> block_;
  std::vector<Input> inputs_;
  std::size_t num_entered_ = 0;
  std::size_t end_ = MessageHeader::bytes;  ///< end of all inputs
};

}  // namespace levada
