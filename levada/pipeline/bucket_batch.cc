#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/pipeline/checkpointed_input.h"
#include "levada/pipeline/graph_builder.h"

namespace levada::pipeline {
namespace {

struct MeasuredItem {
  Item item;
  std::int64_t position = 0;
  std::int64_t length = 0;
  std::size_t bucket = 0;
};

class BucketBatchIterator final : public HoldingIterator<MeasuredItem> {
 public:
  BucketBatchIterator(GraphContextPtr context, int stage, StagePtr input)
      : HoldingIterator(std::move(context), stage, std::move(input)), buckets_(batch().boundaries.size() + 1) {}

 private:
  const BucketBatch& batch() const { return operation<BucketBatch>(); }

  std::optional<Item> make_one() override {
    while (auto item = pull_tracked()) {
      auto measured = guarded([&] { return hold(std::move(*item), num_inputs_ - 1); });
      const auto bucket = measured.bucket;
      std::optional<Item> full;
      if (!has_room(measured)) full = emit(bucket);
      add(measured);
      held_.push_back(std::move(measured));
      if (full) return full;
      if (buckets_[bucket].count == batch().size) return emit(bucket);
    }
    if (held_.empty() || batch().drop_last) return std::nullopt;
    return emit(std::ranges::min(held_, {}, &MeasuredItem::bucket).bucket);
  }

  /// Returns whether the bucket with this item, padded to the longest, stays within max_tokens.
  bool has_room(const MeasuredItem& measured) const {
    const Bucket& bucket = buckets_[measured.bucket];
    const auto longest = std::max(bucket.longest, measured.length);
    return !batch().max_tokens || longest <= *batch().max_tokens / (bucket.count + 1);
  }

  void add(const MeasuredItem& measured) {
    Bucket& bucket = buckets_[measured.bucket];
    ++bucket.count;
    bucket.longest = std::max(bucket.longest, measured.length);
  }

  Item emit(std::size_t bucket) {
    buckets_[bucket] = {};
    std::vector<Item> items;
    std::vector<MeasuredItem> rest;
    for (auto& held : held_) {
      if (held.bucket == bucket) items.push_back(std::move(held.item));
      else rest.push_back(std::move(held));
    }
    held_ = std::move(rest);
    return guarded([&] { return context_->traits.list_of(std::move(items)); });
  }

  MeasuredItem hold(Item item, std::int64_t position) override {
    const auto length = batch().length(item);
    if (length < 0) throw InvalidArgument(fmt::format("item {} has a length of {}", position, length));
    if (batch().max_tokens && length > *batch().max_tokens) {
      throw InvalidArgument(
          fmt::format("item {} has a length of {}, more than max_tokens, {}; leave it out with "
                      "filter(), or cut it",
                      position, length, *batch().max_tokens));
    }
    const auto& boundaries = batch().boundaries;
    const auto bucket = std::ranges::upper_bound(boundaries, length) - boundaries.begin();
    return {std::move(item), position, length, static_cast<std::size_t>(bucket)};
  }
  std::int64_t capacity() const override {
    const auto max_items = std::min(batch().size.value_or(max_count), batch().max_tokens.value_or(max_count));
    const auto buckets = static_cast<std::int64_t>(batch().boundaries.size() + 1);
    return std::min(max_items, max_count / buckets) * buckets;
  }
  void finish_restore() override {
    for (const auto& held : held_) add(held);
  }

  /// The part of held_ in one bucket. An item of length 0 counts as one token, since a bucket of such items would
  /// otherwise never be full.
  struct Bucket {
    std::int64_t count = 0, longest = 1;
  };
  std::vector<Bucket> buckets_;
};

}  // namespace

StagePtr make_stage(const BucketBatch&, const StagePlace& at) {
  return at.make<BucketBatchIterator>(at.input());
}

}  // namespace levada::pipeline
