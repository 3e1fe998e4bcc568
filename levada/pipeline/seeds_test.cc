#include "levada/pipeline/open_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "levada/base/error.h"

namespace levada::pipeline {
namespace {

constexpr int ranks = 3, workers = 2;

TEST(Seeds, AreSharedByAllProcessesOfAnEpoch) {
  std::set<std::uint64_t> shared, of_epochs;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto role : {Role::dispatcher, Role::worker, Role::consumer}) {
      shared.insert(
          make_open_context(1, 0, {.role = role, .rank = rank, .ranks = ranks, .workers = workers}).shared_seed);
    }
  }
  for (std::int64_t epoch = 0; epoch < 100; ++epoch) of_epochs.insert(make_open_context(1, epoch, {}).shared_seed);
  EXPECT_EQ(shared.size(), 1u);
  EXPECT_EQ(of_epochs.size(), 100u);
}

TEST(Seeds, DifferPerCopyAndEpochExceptInTheDispatchingProcess) {
  std::set<std::uint64_t> own;
  for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
    for (int rank = 0; rank < ranks; ++rank) {
      own.insert(make_open_context(1, epoch, {.rank = rank, .ranks = ranks, .workers = workers}).own_seed);
      for (int worker = 0; worker < workers; ++worker) {
        const Copy copy{.role = Role::worker, .rank = rank, .ranks = ranks, .worker = worker, .workers = workers};
        own.insert(make_open_context(1, epoch, copy).own_seed);
      }
      const auto dispatcher = make_open_context(1, epoch, {.role = Role::dispatcher, .rank = rank, .ranks = ranks});
      EXPECT_EQ(dispatcher.own_seed, dispatcher.shared_seed);
    }
  }
  EXPECT_EQ(own.size(), 10u * ranks * (workers + 1));
}

TEST(Seeds, WorkersDivideThePartitionOfTheirRank) {
  std::set<std::int64_t> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int worker = 0; worker < workers; ++worker) {
      const Copy copy{.role = Role::worker, .rank = rank, .ranks = ranks, .worker = worker, .workers = workers};
      const auto open_context = make_open_context(1, 0, copy);
      EXPECT_EQ(open_context.among_all.count, ranks * workers);
      EXPECT_EQ(open_context.among_all.index % ranks, rank);
      EXPECT_EQ(open_context.among_ranks.index, rank);
      EXPECT_EQ(open_context.among_ranks.count, ranks);
      parts.insert(open_context.among_all.index);
    }
    const auto consumer = make_open_context(1, 0, {.rank = rank, .ranks = ranks, .workers = workers});
    EXPECT_EQ(consumer.among_all.count, ranks);
  }
  EXPECT_EQ(parts.size(), static_cast<std::size_t>(ranks * workers));
}

TEST(Seeds, NestedPassesHaveIncreasingNumbers) {
  std::vector<std::vector<std::int64_t>> passes;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t outer = 0; outer < 2; ++outer) {
      const auto further = further_pass(make_open_context(1, epoch, {}), outer, 2);
      for (std::int64_t inner = 0; inner < 3; ++inner) {
        passes.push_back(further_pass(further, inner, std::nullopt).pass_number);
      }
    }
  }
  EXPECT_TRUE(std::ranges::is_sorted(passes));
  EXPECT_EQ(std::ranges::adjacent_find(passes), passes.end());
}

TEST(Seeds, FurtherPassesHaveUniqueSeeds) {
  std::set<std::int64_t> epochs;
  std::set<std::uint64_t> seeds;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    const auto open_context = make_open_context(1, epoch, {});
    EXPECT_EQ(further_pass(open_context, 0, 3).shared_seed, open_context.shared_seed);
    for (std::int64_t pass = 0; pass < 3; ++pass) {
      const auto further = further_pass(open_context, pass, 3);
      epochs.insert(further.epoch);
      seeds.insert(further.shared_seed);
      seeds.insert(further.own_seed);
    }
  }
  EXPECT_EQ(epochs.size(), 12u);
  EXPECT_EQ(seeds.size(), 24u);
  const auto late = make_open_context(1, std::numeric_limits<std::int64_t>::max(), {});
  EXPECT_THROW(further_pass(late, 1, std::nullopt), InvalidArgument);
}

}  // namespace
}  // namespace levada::pipeline
