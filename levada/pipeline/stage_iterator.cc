#include "levada/pipeline/stage_iterator.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/base/trace.h"

namespace levada::pipeline {

void GraphContext::attend(Clock::time_point now) {
  constexpr auto interval = std::chrono::milliseconds(50);
  if (PrefetchThread::current() != nullptr) {
    if (threads.must_stop()) throw Stopped{};
    return;
  }
  attend_at.store((now + interval).time_since_epoch().count(), std::memory_order_relaxed);
  if (poll) poll();
}

void throw_as_failed(const GraphContext& context, int stage, std::int64_t item) {
  Failure failure = failure_of(std::current_exception());
  if (!failure.stage.empty()) throw;
  failure.stage = context.stage(stage).name;
  failure.process = context.process;
  failure.item = item;
  throw StageFailed(std::move(failure));
}

StageIterator::StageIterator(GraphContextPtr context, int stage, StagePtr input)
    : context_(std::move(context)),
      number_(stage),
      counts_(&context_->counts[static_cast<std::size_t>(stage)]),
      input_(std::move(input)),
      draw_(static_cast<std::uint32_t>(stage) + 1) {}

std::optional<Item> StageIterator::next() {
  if (ended_ || failed_) return std::nullopt;
  if (--until_timed_ == 0) return timed();
  return counted();
}

std::int64_t StageIterator::skip(std::int64_t items) {
  if (ended_ || failed_ || items == 0) return 0;
  return or_failed([&] {
    finish_restore();
    return skip_impl(items);
  });
}

std::int64_t StageIterator::make_and_drop(std::int64_t items) {
  pending_threads_->start(number_);
  return Iterator::skip(items);
}

std::optional<Item> StageIterator::counted() {
  return or_failed([this] {
    auto item = make();
    if (item) [[likely]] {
      count(counts_->items);
    } else {
      ended_ = true;
      conclude();
      release();
    }
    return item;
  });
}

void StageIterator::finish_restore() {
  for (const auto& start : std::exchange(fork_starts_, {})) start();
}

// Makes an item and measures the time, which represents that of gap_ items.
std::optional<Item> StageIterator::timed() {
  or_failed([this] {
    finish_restore();
    if (std::exchange(starts_threads_, false)) pending_threads_->start(number_);
  });
  timing_ = true;
  waited_ = {};
  waits_ = 0;
  auto begin = Clock::now();
  if (context_->must_attend(begin)) {
    or_failed([&] { context_->attend(begin); });
    begin = Clock::now();
  }
  auto item = counted();
  const auto spent = Clock::now() - begin;
  timing_ = false;
  if (context_->log != nullptr) record(begin, spent, item.has_value());
  const auto to_ns = [&](Duration duration) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count() * gap_;
  };
  count(counts_->busy_ns, to_ns(spent - waited_));
  count(counts_->waited_ns, to_ns(waited_));
  until_timed_ = gap_ = next_gap(spent);
  return item;
}

void StageIterator::add_wait(Clock::time_point begin, Clock::time_point end) {
  waited_ += end - begin;
  ++waits_;
  if (context_->log == nullptr) return;
  context_->log->add({.work = StageWork::input,
                      .stage = number_,
                      .begin_ns = trace_time(begin),
                      .duration_ns = trace_time(end) - trace_time(begin)});
}

// Records a timed item. Items that are not timed are too small to be shown individually.
void StageIterator::record(Clock::time_point begin, Duration spent, bool has_item) const {
  const bool is_here = counts_ == &context_->counts[static_cast<std::size_t>(number_)];
  if (!is_here) return;  // the wait for another process's item is counted by the stage that pulls it
  context_->log->add({.work = StageWork::item,
                      .stage = number_,
                      .items = has_item ? 1u : 0u,
                      .begin_ns = trace_time(begin),
                      .duration_ns = trace_time(begin + spent) - trace_time(begin),
                      .waited_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(waited_).count()});
}

// Returns the number of items until the next timed one: 1 for slow items, otherwise random, so that sampling cannot
// fall into step with a stage that works only at every n-th item.
std::int64_t StageIterator::next_gap(Duration spent) {
  constexpr auto slow = std::chrono::microseconds(2);  ///< relative to the cost of reading the clock
  constexpr std::uint32_t mean = 64;
  if (spent > slow * (1 + waits_)) return 1;
  draw_ = draw_ * 1664525 + 1013904223;
  return 1 + (draw_ >> 16) % (2 * mean - 1);
}

std::vector<Tree> StageIterator::entries() const {
  Fields own = {{"stage", stage().name}, {"num_inputs", num_inputs_}};
  if (ended_) {
    own.emplace_back("ended", true);
    std::vector<Tree> only;
    only.push_back(Tree::dict(std::move(own)));
    return only;
  }
  auto saved = this->saved();
  for (auto& field : saved.own) own.push_back(std::move(field));
  saved.before.push_back(Tree::dict(std::move(own)));
  return std::move(saved.before);
}

void StageIterator::restore_entries(std::span<const Tree> entries) {
  if (entries.empty()) throw InvalidArgument(fmt::format("the state ends before stage {}", stage().name));
  const CursorFields own(entries.back(), stage().name);
  num_inputs_ = own.count("num_inputs");
  const auto before = entries.first(entries.size() - 1);
  ended_ = own.has("ended");
  if (ended_) {
    if (!before.empty()) own.fail("it has ended, but other entries precede it");
    return release();
  }
  restore_saved(own, before);
  finish_restore();
}

void StageIterator::restore_saved(const CursorFields&, std::span<const Tree> before) {
  input_->restore_entries(before);
}

}  // namespace levada::pipeline
