#include "python/src/batch/batch_memory.h"

#include <algorithm>
#include <utility>

#include "levada/base/error.h"
#include "levada/transfer/outbox.h"
#include "levada/tree/codec.h"

namespace levada::python {
namespace {

/// Maximum number of threads that make batches. Beyond that, threads whose batch has no tensors are assumed to have
/// ended.
constexpr std::size_t max_makers = 64;

}  // namespace

bool BatchMemory::is_idle(const std::shared_ptr<Batch>& batch) {
  return !batch || !batch->open || batch->open.use_count() == 1;
}

void BatchMemory::begin(std::size_t bytes) {
  if (!is_usable()) return;
  {
    // Blocks of one size are reused; with ever new sizes, each Block would have to be mapped anew.
    const std::lock_guard lock(mutex_);
    bytes = std::max(bytes, expected_);
  }
  start(bytes);
}

Tensor BatchMemory::empty(DType dtype, const Shape& shape) {
  const auto bytes = tensor_bytes(dtype, shape);
  if (!bytes) throw InvalidArgument("no tensor has such a shape: it is negative, or does not fit in memory");
  if (!is_usable() || *bytes == 0) return Tensor::empty(dtype, shape);
  if (const auto expected = to_begin_with(*bytes)) start(*expected);

  const std::lock_guard lock(mutex_);
  Batch& batch = *making_[std::this_thread::get_id()];
  batch.asked += align_up(*bytes, leaf_alignment);
  const std::size_t offset = align_up(batch.used, leaf_alignment);
  if (!batch.open || offset > batch.size || *bytes > batch.size - offset) return Tensor::empty(dtype, shape);
  batch.used = offset + *bytes;
  return Tensor(TensorView(dtype, shape, batch.open->memory().data() + offset), batch.open, true);
}

std::optional<std::size_t> BatchMemory::to_begin_with(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto& batch = making_[std::this_thread::get_id()];
  if (!batch || !batch->open) return std::max(bytes, expected_);
  if (batch->open.use_count() > 1) return std::nullopt;
  // No tensor made in it is left, so the memory can be reused.
  batch->used = message_prefix_bytes;
  batch->asked = 0;
  return batch->size < BlockMemory::block_bytes(bytes) ? std::optional(bytes) : std::nullopt;
}

std::optional<BatchMemory::Place> BatchMemory::find(const std::byte* address) {
  if (!is_usable()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto after = batches_.upper_bound(address);
  if (after == batches_.begin()) return std::nullopt;
  const auto& [begin, batch] = *std::prev(after);
  auto block = batch->block.lock();
  if (!block || static_cast<std::size_t>(address - begin) >= batch->size) return std::nullopt;
  if (batch->open) {
    expected_ = std::max(batch->asked, expected_ - expected_ / 8);
    batch->open.reset();
  }
  return Place{std::move(block), batch->used};
}

void BatchMemory::start(std::size_t bytes) {
  const auto batch = std::make_shared<Batch>();
  auto block = allocate(BlockMemory::block_bytes(bytes));
  const std::lock_guard lock(mutex_);
  std::erase_if(batches_, [](const auto& each) { return each.second->block.expired(); });
  if (making_.size() > max_makers) std::erase_if(making_, [](const auto& each) { return is_idle(each.second); });
  auto& before = making_[std::this_thread::get_id()];
  if (before) before->open.reset();
  before = batch;
  if (!block) return;
  batch->size = block->memory().size();
  batch->used = message_prefix_bytes;
  batch->open = std::make_shared<Block>(std::move(*block));
  batch->block = batch->open;
  batches_[batch->open->memory().data()] = batch;
}

std::optional<Block> BatchMemory::allocate(std::size_t bytes) const {
  const auto engine = engine_.lock();
  if (!engine) return std::nullopt;
  try {
    return engine->try_allocate(bytes);
  } catch (const Error&) {
    return std::nullopt;  // ordinary memory will do; the feed itself reports the error
  }
}

std::shared_ptr<const void> DeferredOwners::later(const std::shared_ptr<DeferredOwners>& spent,
                                                  std::shared_ptr<const void> owner) {
  const void* that = owner.get();
  return {that, [spent, owner = std::move(owner)](const void*) mutable {
            const std::lock_guard lock(spent->mutex_);
            spent->owners_.push_back(std::move(owner));
          }};
}

void DeferredOwners::clear() {
  std::vector<std::shared_ptr<const void>> owners;
  {
    const std::lock_guard lock(mutex_);
    owners.swap(owners_);
  }
}

}  // namespace levada::python
