#include "levada/transfer/outbox.h"

#include <algorithm>

#include "levada/base/assert.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

/// Room beyond the announced tensors: the prefix, each tensor's alignment, the body.
constexpr std::size_t slack = std::size_t{64} << 10;

const Tensor* tensor_of(const FlatTree& batch, const Portion::Part& part) {
  return part.leaf < 0 ? nullptr : std::get_if<Tensor>(&batch.leaves[static_cast<std::size_t>(part.leaf)]);
}

bool lies_in(const Tensor& tensor, const std::shared_ptr<Block>& block) {
  return block && tensor.owner() == std::shared_ptr<const void>(block) && tensor.view().is_contiguous() &&
         static_cast<std::size_t>(tensor.view().data() - block->memory().data()) % leaf_alignment == 0;
}

/// Returns whether only the batch and its memory hold the block, so that no other reader is affected when it is sent
/// and reused.
bool held_by_batch_alone(const FlatTree& batch, const std::shared_ptr<Block>& block) {
  const auto holders = std::count_if(batch.leaves.begin(), batch.leaves.end(), [&](const Leaf& leaf) {
    const auto* tensor = std::get_if<Tensor>(&leaf);
    return tensor != nullptr && tensor->owner() == std::shared_ptr<const void>(block);
  });
  return block.use_count() == holders + 1;
}

/// Assigns each tensor a position: its current one if it is in `block`, otherwise one after the tensors in the block.
/// Does not set PendingMessage::block.
PendingMessage place_parts(const FlatTree& batch, const Portion& portion, const std::shared_ptr<Block>& block,
                           std::size_t used) {
  PendingMessage placing;
  placing.placed.resize(portion.parts.size());
  placing.leaves.reserve(portion.parts.size());
  for (std::size_t i = 0; i < portion.parts.size(); ++i) {
    const Portion::Part& part = portion.parts[i];
    placing.leaves.push_back(part.leaf < 0 ? Leaf() : batch.leaves[static_cast<std::size_t>(part.leaf)]);
    const Tensor* tensor = tensor_of(batch, part);
    if (tensor == nullptr || portion.schema.leaves()[i].alias_of >= 0) continue;
    placing.placed[i].shape = part.shape;
    if (part.whole && lies_in(*tensor, block)) {
      placing.placed[i].offset = static_cast<std::uint64_t>(tensor->view().data() - block->memory().data());
      continue;
    }
    used = align_up(used, leaf_alignment);
    placing.placed[i].offset = used;
    used += part.bytes;
    placing.to_copy.push_back(i);
  }
  placing.body = align_up(used, leaf_alignment);
  return placing;
}

}  // namespace

std::size_t BlockMemory::block_bytes(std::size_t bytes) {
  return message_prefix_bytes + bytes + slack;
}

void BlockMemory::reserve(std::size_t bytes) {
  if (!block_) adopt(std::make_shared<Block>(allocate_(block_bytes(bytes))), message_prefix_bytes);
}

void BlockMemory::adopt(std::shared_ptr<Block> block, std::size_t used) {
  block_ = std::move(block);
  used_ = used;
}

FlatTree BlockMemory::copy_in(FlatTree&& batch, CopyMode way) {
  if (block_ && !held_by_batch_alone(batch, block_)) block_.reset();
  const auto specs = batch.schema.leaves();
  std::vector<std::size_t> outside;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&batch.leaves[i]);
    if (tensor == nullptr || lies_in(*tensor, block_)) continue;
    outside.push_back(i);
    if (specs[i].alias_of < 0) bytes += align_up(tensor->view().byte_count(), leaf_alignment);
  }
  if (bytes > 0) reserve(bytes);
  for (const std::size_t i : outside) {
    auto& tensor = std::get<Tensor>(batch.leaves[i]);
    if (specs[i].alias_of >= 0) {
      tensor = std::get<Tensor>(batch.leaves[static_cast<std::size_t>(specs[i].alias_of)]);
      continue;
    }
    Tensor copy = empty(tensor.dtype(), tensor.shape());
    copy_elements(tensor, copy.mutable_bytes().data(), way);
    tensor = std::move(copy);
  }
  return std::move(batch);
}

Tensor BlockMemory::empty(DType dtype, const Shape& shape) {
  const std::size_t bytes = TensorView(dtype, shape, nullptr).byte_count();
  reserve(bytes);
  const std::size_t offset = align_up(used_, leaf_alignment);
  const auto memory = block_->memory();
  if (offset > memory.size() || bytes > memory.size() - offset) return Tensor::empty(dtype, shape);
  used_ = offset + bytes;
  return Tensor(TensorView(dtype, shape, memory.data() + offset), block_, true);
}

PendingMessage Outbox::prepare(const FlatTree& batch, const Portion& portion, std::size_t envelope_bytes,
                               BlockMemory* memory, const AllocateBlock& allocate) {
  const bool with_schema = !sent_.find(portion.schema.fingerprint()).has_value();
  const bool may_send = memory != nullptr && memory->block() && held_by_batch_alone(batch, memory->block());
  PendingMessage pending = may_send ? place_parts(batch, portion, memory->block(), memory->used())
                                    : place_parts(batch, portion, nullptr, message_prefix_bytes);
  const std::size_t body_size = body_bytes(portion.schema, pending.leaves, envelope_bytes, with_schema);
  if (may_send && pending.body + body_size <= memory->block()->memory().size()) {
    pending.block = std::move(*memory->block());
  } else {
    if (may_send) pending = place_parts(batch, portion, nullptr, message_prefix_bytes);
    pending.block = allocate(pending.body + body_size);
  }
  pending.with_schema = with_schema;
  return pending;
}

PackedMessage Outbox::complete(PendingMessage pending, const FlatTree& batch, const Portion& portion, ByteView envelope,
                               CopyMode way) {
  if (pending.with_schema) sent_.add(portion.schema);
  const auto memory = pending.block.memory();
  for (const std::size_t i : pending.to_copy) {
    const Portion::Part& part = portion.parts[i];
    const Tensor& tensor = *tensor_of(batch, part);
    LEVADA_ASSERT(pending.placed[i].offset + part.bytes <= pending.body && pending.body <= memory.size(),
                  "tensors precede the body of their message");
    std::byte* to = memory.data() + pending.placed[i].offset;
    if (part.whole) copy_elements(tensor, to, way);
    else copy_region(tensor, part.region, to, way);
  }
  const std::size_t bytes = write_message(memory, pending.body, envelope, portion.schema, pending.with_schema,
                                          pending.leaves, pending.placed);
  LEVADA_ASSERT(bytes <= memory.size(), "a message fits into its block");
  return {std::move(pending.block), bytes};
}

}  // namespace levada
