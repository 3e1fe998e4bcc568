#include "levada/feed/step_source.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada {

std::optional<std::int64_t> StepSource::size() const {
  return ended_ ? std::optional(step_.end_round() * options_.ranks) : std::nullopt;
}

std::optional<Tree> StepSource::read(std::int64_t first, std::int64_t, Memory& memory) {
  const auto round = first / options_.ranks;
  while (round >= step_.end_round()) {
    if (!plan_next()) return std::nullopt;
  }
  const auto& members =
      step_.plan.at(static_cast<int>(first % options_.ranks), static_cast<int>(round - step_.first_round));
  std::vector<std::int64_t> numbers;
  for (const auto member : members) numbers.push_back(step_.first_sample + static_cast<std::int64_t>(member));
  return samples_->gather(numbers, memory);
}

bool StepSource::plan_next() {
  if (ended_) return false;
  const auto begin = step_.end_sample();
  auto sizes = samples_->sizes(begin, options_.step_samples);
  const bool is_full = std::cmp_equal(sizes.size(), options_.step_samples);
  if (sizes.empty() || (!is_full && options_.tail == Tail::drop)) {
    ended_ = true;
    return false;
  }
  StepPlan plan;
  try {
    plan = plan_step(sizes, options_.ranks, options_.balance);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("the step of samples {} to {} cannot be divided: {}", begin,
                                      begin + static_cast<std::int64_t>(sizes.size()) - 1, error.what()));
  }
  {
    const std::lock_guard lock(balance_mutex_);
    balance_.add(balance_of(plan, sizes, options_.balance.cost));
  }
  step_ = {.number = step_.number + 1,
           .first_round = step_.end_round(),
           .first_sample = begin,
           .samples = std::move(sizes),
           .plan = std::move(plan)};
  return true;
}

Bytes StepSource::cursor(std::int64_t next) const {
  return next / options_.ranks == step_.end_round() ? samples_->cursor(step_.end_sample()) : Bytes();
}

std::optional<MicroBatch> StepSource::micro_batch(std::int64_t number) const {
  const auto round = number / options_.ranks;
  if (round < step_.first_round || round >= step_.end_round()) return std::nullopt;
  const auto micro = round - step_.first_round;
  const auto& members = step_.plan.at(static_cast<int>(number % options_.ranks), static_cast<int>(micro));
  return MicroBatch{.step = step_.number,
                    .micro = micro,
                    .num_micro = step_.plan.num_micro,
                    .samples = static_cast<std::int64_t>(members.size())};
}

BalanceSeries StepSource::balance() const {
  const std::lock_guard lock(balance_mutex_);
  return balance_;
}

}  // namespace levada
