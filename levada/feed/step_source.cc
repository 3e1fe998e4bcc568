#include "levada/feed/step_source.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/feed/context_parts.h"
#include "levada/feed/step_cursor.h"

namespace levada {
namespace {

std::uint64_t hash_of(const StepPlan& plan, const std::vector<std::int64_t>& samples, std::uint64_t before) {
  ByteWriter writer;
  for (const auto& members : plan.micros) {
    writer.put(static_cast<std::uint64_t>(members.size()));
    for (const auto member : members) writer.put(samples[member]);
  }
  for (const int size : plan.cp_sizes) writer.put(static_cast<std::uint32_t>(size));
  return hash64(writer.view(), before);
}

}  // namespace

std::optional<std::int64_t> StepSource::size() const {
  return ended_ ? std::optional(step_.end_round() * options_.ranks) : std::nullopt;
}

std::optional<Tree> StepSource::read(std::int64_t first, std::int64_t, Memory& memory) {
  const auto round = first / options_.ranks;
  while (round >= step_.end_round()) {
    if (!plan_next()) return std::nullopt;
  }
  const auto rank = static_cast<int>(first % options_.ranks), micro = static_cast<int>(round - step_.first_round);
  const int size = step_.plan.cp_size_at(rank, micro);
  if (size == 1) return gather(rank, micro, memory);
  const int index = rank % size;
  if (shared_number_ != first - index) {
    HeapMemory heap;
    shared_row_ = gather(rank, micro, heap);
    shared_number_ = first - index;
    if (options_.reads_all) shared_totals_ = counter_.count(flatten(shared_row_));
  }
  return context_part(shared_row_, options_.cuts, size, index, memory);
}

Tree StepSource::gather(int rank, int micro, Memory& memory) {
  std::vector<std::int64_t> numbers;
  for (const auto member : step_.plan.at(rank, micro)) numbers.push_back(step_.samples[member]);
  auto row = samples_->gather(numbers, memory);
  if (options_.balance.max_cp > 1 && !has_checked_row_) check_row(row, options_.cuts, options_.balance.max_cp);
  has_checked_row_ = true;
  return row;
}

bool StepSource::plan_next() {
  if (ended_) return false;
  auto chosen = choose();
  const bool is_full = std::cmp_equal(chosen.numbers.size(), options_.step_samples);
  if (chosen.numbers.empty() || (!is_full && options_.tail == Tail::drop)) {
    const bool is_first = step_.number < 0 && options_.first_sample == 0 && options_.delayed.empty();
    if (is_first && !chosen.numbers.empty()) {
      throw InvalidArgument(
          fmt::format("one step takes {} samples, but there are only {}; lower the batch size, add samples, or keep an "
                      "incomplete step (tail=\"short\", --tail short)",
                      options_.step_samples, chosen.numbers.size()));
    }
    ended_ = true;
    return false;
  }
  auto plan = divide(chosen);
  auto balance = balance_of(plan, chosen.sizes, options_.balance);
  if (unbalanced_) balance.unbalanced = *unbalanced_;
  balance.delayed = chosen.delayed;
  balance.waited = chosen.waited;
  balance.longest_wait = chosen.longest_wait;
  {
    const std::lock_guard lock(balance_mutex_);
    balance_.add(balance);
  }
  const auto division = hash_of(plan, chosen.numbers, step_.division);
  step_ = {.number = step_.number + 1,
           .first_round = step_.end_round(),
           .end_sample = step_.end_sample + chosen.taken,
           .samples = std::move(chosen.numbers),
           .plan = std::move(plan),
           .division = division};
  return true;
}

DelayQueue::Step StepSource::choose() {
  const auto begin = step_.end_sample, count = options_.step_samples;
  unbalanced_.reset();
  const bool delays = options_.balance.max_delay > 0 || !queue_.waiting().empty();
  const auto ahead = delays ? 2 * count : count;
  if (options_.reads_all) {
    samples_->will_read(announced_, begin + ahead + count - announced_);
    announced_ = begin + ahead + count;
  }
  if (step_.number < 0 && !options_.delayed.empty()) {
    for (auto& sample : options_.delayed) sample.size = samples_->sizes(sample.number, 1).at(0);
    queue_ = DelayQueue(options_.ranks, options_.balance.cost, options_.balance.max_delay, options_.delayed);
  }
  const auto next = samples_->sizes(begin, ahead);
  if (delays) {
    const auto in_order = std::span(next).first(std::min(next.size(), static_cast<std::size_t>(count)));
    unbalanced_ = unbalanced_work(in_order, options_.ranks, options_.balance.cost);
  }
  return queue_.choose(begin, next, count);
}

StepPlan StepSource::divide(const DelayQueue::Step& samples) const try {
  return plan_step(samples.sizes, options_.ranks, options_.balance);
} catch (const InvalidArgument& error) {
  const bool is_full = std::cmp_equal(samples.numbers.size(), options_.step_samples);
  throw InvalidArgument(fmt::format(
      "the step of samples {} to {} cannot be divided: {}{}", samples.numbers.front(), samples.numbers.back(),
      error.what(), is_full ? "" : "; or drop the last step (tail=\"drop\", drop_last=True, --tail drop)"));
}

Bytes StepSource::cursor(std::int64_t next) const {
  if (next / options_.ranks != step_.end_round()) return {};
  return StepCursor{.source = samples_->cursor(step_.end_sample), .delayed = queue_.waiting()}.encode();
}

std::optional<MicroBatch> StepSource::micro_batch(std::int64_t number) const {
  const auto round = number / options_.ranks;
  if (round < step_.first_round || round >= step_.end_round()) return std::nullopt;
  const auto micro = round - step_.first_round;
  const auto& members = step_.plan.at(static_cast<int>(number % options_.ranks), static_cast<int>(micro));
  return MicroBatch{
      .step = step_.number,
      .micro = micro,
      .num_micro = step_.plan.num_micro,
      .samples = static_cast<std::int64_t>(members.size()),
      .cp_size = step_.plan.cp_size_at(static_cast<int>(number % options_.ranks), static_cast<int>(micro)),
      .division = step_.division,
      .row = shared_totals_};
}

BalanceSeries StepSource::balance() const {
  const std::lock_guard lock(balance_mutex_);
  return balance_;
}

}  // namespace levada
