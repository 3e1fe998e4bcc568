#include "levada/pipeline/checkpointed_input.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada::pipeline {

void CheckpointedInput::begin() const {
  if (std::exchange(begun_, true)) return;
  history_.mark(position_ - skip_, [this] { return save(); });
}

std::optional<Item> CheckpointedInput::next() {
  if (!begun_) begin();
  if (skip_ > 0) skip_restored();
  if (history_.due()) context_->count_snapshot(history_.mark(position_, [this] { return save(); }));
  auto item = input_->next();
  position_ += item.has_value();
  return item;
}

std::int64_t CheckpointedInput::skip(std::int64_t items) {
  if (skip_ > 0) skip_restored();
  const auto passed = input_->skip(items);
  position_ += passed;
  return passed;
}

void CheckpointedInput::skip_restored() {
  skip_ -= input_->skip(skip_);
  if (skip_ == 0) return;
  try {
    throw_past_end(position_ - skip_);
  } catch (const InvalidArgument&) {
    throw_as_failed(*context_, stage_, position_ - skip_);
  }
}

CheckpointedInput::Point CheckpointedInput::at(std::int64_t position) const {
  if (!begun_) begin();
  auto point = history_.at(position);
  return {point.cursor.container().children, point.skip};
}

void CheckpointedInput::restore(std::span<const Tree> entries, std::int64_t position, std::int64_t skip) {
  if (skip < 0 || skip > position) {
    throw InvalidArgument(
        fmt::format("the state of stage {} skips {} of only {} items", context_->stage(stage_).name, skip, position));
  }
  input_->restore_entries(entries);
  position_ = position;
  skip_ = skip;
}

}  // namespace levada::pipeline
