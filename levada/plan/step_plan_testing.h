// Steps for unit tests, and the conditions that every plan of a step fulfills.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "levada/plan/step_plan.h"

namespace levada::test {

using Sizes = std::vector<SampleSize>;

struct StepOptions {
  int ranks = 1;
  SampleCost cost = {};
  PartSizes sizes = PartSizes::any;
  std::int64_t max_tokens = 0;
  MicroOrder order = MicroOrder::as_read;
  Wait wait = Wait::step;
};

inline Balance balance_in(const StepOptions& options) {
  return {.cost = options.cost,
          .sizes = options.sizes,
          .max_tokens = options.max_tokens,
          .order = options.order,
          .wait = options.wait};
}

inline StepPlan plan_step(const Sizes& samples, const StepOptions& options) {
  return levada::plan_step(samples, options.ranks, balance_in(options));
}

inline SampleSize of_tokens(std::int64_t tokens) {
  return {.tokens = tokens, .squares = tokens * tokens};
}

inline Sizes of_tokens(std::initializer_list<std::int64_t> tokens) {
  Sizes sizes;
  for (const auto each : tokens) sizes.push_back(of_tokens(each));
  return sizes;
}

/// Document lengths: lognormal with a mean of 1,500.
inline Sizes lognormal(std::mt19937& random, std::size_t count, double longest) {
  std::lognormal_distribution<double> lengths(std::log(1500.0) - 0.72, 1.2);
  Sizes sizes(count);
  for (auto& size : sizes) size = of_tokens(static_cast<std::int64_t>(std::clamp(lengths(random), 1.0, longest)));
  return sizes;
}

inline std::int64_t tokens_of(std::span<const SampleSize> samples) {
  std::int64_t sum = 0;
  for (const auto& sample : samples) sum += sample.tokens;
  return sum;
}

/// Checks the conditions that every plan fulfills.
inline void expect_sound(const StepPlan& plan, std::span<const SampleSize> samples, const StepOptions& options) {
  ASSERT_EQ(plan.ranks, options.ranks);
  ASSERT_GE(plan.num_micro, 1);
  ASSERT_EQ(plan.micros.size(), static_cast<std::size_t>(plan.ranks) * static_cast<std::size_t>(plan.num_micro));
  std::vector<std::size_t> all, of_ranks(static_cast<std::size_t>(plan.ranks));
  for (std::size_t i = 0; i < plan.micros.size(); ++i) {
    const auto& micro = plan.micros[i];
    ASSERT_FALSE(micro.empty());
    ASSERT_TRUE(std::ranges::is_sorted(micro));
    std::int64_t tokens = 0;
    for (const std::size_t item : micro) {
      ASSERT_LT(item, samples.size());
      tokens += samples[item].tokens;
    }
    if (options.max_tokens > 0) {
      ASSERT_LE(tokens, options.max_tokens);
    } else {
      ASSERT_EQ(plan.num_micro, 1);
    }
    all.insert(all.end(), micro.begin(), micro.end());
    of_ranks[i / static_cast<std::size_t>(plan.num_micro)] += micro.size();
  }
  std::ranges::sort(all);
  std::vector<std::size_t> expected(samples.size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  ASSERT_EQ(all, expected);
  if (options.sizes == PartSizes::equal) {
    const auto [least, most] = std::ranges::minmax(of_ranks);
    ASSERT_LE(most - least, 1u);
  }
}

}  // namespace levada::test
