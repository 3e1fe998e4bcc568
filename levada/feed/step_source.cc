#include "levada/feed/step_source.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada {

StepSource::StepSource(std::shared_ptr<Source> samples, int ranks, const Balance& balance, std::int64_t step_samples,
                       std::int64_t first_sample, Tail tail)
    : samples_(std::move(samples)), ranks_(ranks), balance_(balance), step_samples_(step_samples), tail_(tail) {
  step_.first_sample = first_sample;
}

std::optional<std::int64_t> StepSource::size() const {
  return ended_ ? std::optional(step_.end_round() * ranks_) : std::nullopt;
}

std::optional<Tree> StepSource::read(std::int64_t first, std::int64_t, Memory& memory) {
  const auto round = first / ranks_;
  while (round >= step_.end_round()) {
    if (!advance()) return std::nullopt;
  }
  const auto& members = step_.plan.at(static_cast<int>(first % ranks_), static_cast<int>(round - step_.first_round));
  std::vector<std::int64_t> numbers;
  for (const auto member : members) numbers.push_back(step_.first_sample + static_cast<std::int64_t>(member));
  return samples_->gather(numbers, memory);
}

bool StepSource::advance() {
  if (ended_) return false;
  const auto begin = step_.end_sample();
  auto sizes = samples_->sizes(begin, step_samples_);
  const bool is_full = std::cmp_equal(sizes.size(), step_samples_);
  if (sizes.empty() || (!is_full && tail_ == Tail::drop)) {
    ended_ = true;
    return false;
  }
  StepPlan plan;
  try {
    plan = plan_step(sizes, ranks_, balance_);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("the step of samples {} to {} cannot be divided: {}", begin,
                                      begin + static_cast<std::int64_t>(sizes.size()) - 1, error.what()));
  }
  balanced_ += balance_of(plan, sizes, balance_.cost);
  step_ = {.number = step_.number + 1,
           .first_round = step_.end_round(),
           .first_sample = begin,
           .samples = std::move(sizes),
           .plan = std::move(plan)};
  return true;
}

Bytes StepSource::cursor(std::int64_t next) const {
  return next / ranks_ == step_.end_round() ? samples_->cursor(step_.end_sample()) : Bytes();
}

std::optional<MicroBatch> StepSource::micro_batch(std::int64_t number) const {
  const auto round = number / ranks_;
  if (round < step_.first_round || round >= step_.end_round()) return std::nullopt;
  const auto micro = round - step_.first_round;
  const auto& members = step_.plan.at(static_cast<int>(number % ranks_), static_cast<int>(micro));
  return MicroBatch{.step = step_.number,
                    .micro = micro,
                    .num_micro = step_.plan.num_micro,
                    .samples = static_cast<std::int64_t>(members.size())};
}

ReadStats StepSource::stats() const {
  auto stats = samples_->stats();
  stats.balance = balanced_;
  return stats;
}

}  // namespace levada
