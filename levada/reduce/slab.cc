#include "levada/reduce/slab.h"

#include <utility>

#include "levada/base/assert.h"

namespace levada {

std::size_t Slab::block_bytes(std::size_t bytes) {
  return MessageHeader::bytes + align_up(bytes, BucketLayout::alignment);
}

Slab::Slab(const Engine& group, Block block)
    : group_(&group), block_(std::make_shared<const Block>(std::move(block))) {}

bool Slab::has_room(std::size_t bytes) const {
  return align_up(bytes, BucketLayout::alignment) <= block_->memory().size() - end_;
}

std::byte* Slab::reserve(std::size_t bytes) {
  LEVADA_ASSERT(block_ && has_room(bytes), "the slab has room for the input and has not been sent");
  inputs_.push_back({.begin = end_, .bytes = bytes});
  end_ += align_up(bytes, BucketLayout::alignment);
  return block_->memory().data() + inputs_.back().begin;
}

Tensor Slab::make_tensor(DType dtype, const Shape& shape) {
  const std::size_t bytes = TensorView(dtype, shape, nullptr).byte_count();
  auto owner = std::make_shared<Owner>(Owner{shared_from_this(), block_});
  const TensorView view(dtype, shape, reserve(bytes));
  inputs_.back().owner = owner;
  return Tensor(view, std::move(owner), true);
}

bool Slab::is_next(const Engine& group, const TensorView& input) const {
  if (is_sent() || is_all_entered() || &group != group_) return false;
  const Input& next = inputs_[num_entered_];
  return input.data() == data() + next.begin && input.is_contiguous() && input.byte_count() == next.bytes &&
         !next.owner.expired();
}

void Slab::enter_next() {
  LEVADA_ASSERT(num_entered_ < inputs_.size(), "at most the reserved inputs are entered");
  if (const auto owner = inputs_[num_entered_++].owner.lock()) *owner = {};
}

BucketMessage Slab::send() {
  LEVADA_ASSERT(block_, "a slab is sent once");
  const std::size_t bytes = is_all_entered() ? end_ : inputs_[num_entered_].begin;
  return {std::exchange(block_, nullptr), bytes, num_entered_};
}

}  // namespace levada
