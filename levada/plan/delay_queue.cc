#include "levada/plan/delay_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace levada {
namespace {

constexpr double everything = std::numeric_limits<double>::infinity();

/// Returns the kind of samples with this work.
int kind_of(double work) {
  return work < 1 ? 0 : std::ilogb(work);
}

/// Sorts by number.
void sort(DelayQueue::Step& step) {
  std::vector<std::size_t> order(step.numbers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return step.numbers[i]; });
  auto sorted = step;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sorted.numbers[i] = step.numbers[order[i]];
    sorted.sizes[i] = step.sizes[order[i]];
  }
  step = std::move(sorted);
}

}  // namespace

DelayQueue::Step DelayQueue::choose(std::int64_t first, std::span<const SampleSize> next, std::int64_t count) {
  Step step;
  for (auto& sample : waiting_) ++sample.waited;
  const double released = due();
  release(released, count, step);
  double mean = 0;
  for (const auto& size : next) mean += work_of(size) / static_cast<double>(next.size());
  const double limit = std::max(mean * static_cast<double>(count) / ranks_, released);
  for (; step.taken < std::ssize(next) && std::ssize(step.numbers) < count; ++step.taken) {
    const auto& size = next[static_cast<std::size_t>(step.taken)];
    const bool may_wait = max_delay_ > 0 && ranks_ > 1 && std::ssize(waiting_) < count;
    if (may_wait && work_of(size) > limit) {
      waiting_.push_back({.number = first + step.taken, .size = size});
      continue;
    }
    step.numbers.push_back(first + step.taken);
    step.sizes.push_back(size);
  }
  release(everything, count, step);
  sort(step);
  return step;
}

double DelayQueue::work_of(const SampleSize& size) const {
  const auto work = cost_.of(size);
  return static_cast<double>(std::max(work.first, work.second));
}

double DelayQueue::due() const {
  std::map<int, int> by_kind;
  int kind = -1;
  for (const auto& sample : waiting_) {
    const int its = kind_of(work_of(sample.size));
    if (++by_kind[its] >= ranks_ || sample.waited >= max_delay_) kind = std::max(kind, its);
  }
  return kind < 0 ? 0 : std::nextafter(std::ldexp(1.0, kind + 1), 0.0);
}

void DelayQueue::release(double limit, std::int64_t count, Step& step) {
  const auto is_kept = [&](const DelayedSample& sample) {
    if (work_of(sample.size) > limit || std::ssize(step.numbers) >= count) return true;
    step.numbers.push_back(sample.number);
    step.sizes.push_back(sample.size);
    if (sample.waited > 0) ++step.delayed;
    step.waited += sample.waited;
    step.longest_wait = std::max(step.longest_wait, sample.waited);
    return false;
  };
  std::vector<DelayedSample> kept;
  std::ranges::copy_if(waiting_, std::back_inserter(kept), is_kept);
  waiting_ = std::move(kept);
}

}  // namespace levada
