#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "levada/base/error.h"
#include "levada/pipeline/epoch_end_barrier.h"

namespace levada::pipeline {
namespace {

using Kind = Lookahead::Kind;

/// Delivers to `tree` the report of `from` to its group.
void receive_from(EndTree& tree, int from, const Lookahead& reported) {
  for (std::size_t i = 0; i < tree.links().size(); ++i) {
    if (tree.links()[i].from == from && !tree.links()[i].is_result) return tree.receive(i, reported);
  }
  FAIL() << "rank " << from << " sends no report to this one";
}

TEST(EndTree, KnowsTheOutcomeOnceAllRanksHaveReported) {
  EndTree tree(0, 3);
  EXPECT_FALSE(tree.outcome(0));
  tree.report({.until = 5});
  receive_from(tree, 1, {.until = 3, .kind = Kind::ended});
  EXPECT_FALSE(tree.outcome(0));
  receive_from(tree, 2, {.until = 2});
  EXPECT_EQ(tree.outcome(1)->kind, Kind::there);
  EXPECT_FALSE(tree.outcome(2)) << "rank 2 may still fail there";
  EXPECT_FALSE(tree.outcome(3)) << "or at 3";
  receive_from(tree, 2, {.until = 9});
  EXPECT_EQ(tree.outcome(2)->kind, Kind::there);
  EXPECT_EQ(tree.outcome(3)->kind, Kind::ended);
}

TEST(EndTree, AFailurePrecedesAnEndAndLowerRanksPrecedeHigherOnes) {
  EndTree tree(0, 4);
  tree.report({.until = 3, .kind = Kind::ended});
  receive_from(tree, 1, {4, Kind::failed, 1, Failure{.message = "later"}});
  receive_from(tree, 3, {3, Kind::failed, 3, Failure{.message = "second"}});
  receive_from(tree, 2, {3, Kind::failed, 2, Failure{.message = "first"}});
  EXPECT_EQ(tree.outcome(2)->kind, Kind::there);
  const auto outcome = tree.outcome(3);
  EXPECT_EQ(outcome->kind, Kind::failed);
  EXPECT_EQ(outcome->failed_rank, 2);
  EXPECT_EQ(outcome->failure->message, "first");
}

TEST(EndTree, RejectsContradictoryReports) {
  EndTree tree(0, 1);
  tree.report({.until = 5});
  EXPECT_THROW(tree.report({.until = 4}), CorruptMessage);
  tree.report({.until = 5, .kind = Kind::ended});
  EXPECT_THROW(tree.report({.until = 6}), CorruptMessage);
}

/// The trees of all ranks, and the messages between them.
class Forest {
 public:
  Forest(int ranks, int group) : sent_(static_cast<std::size_t>(ranks)), received_(sent_) {
    for (int rank = 0; rank < ranks; ++rank) trees_.emplace_back(rank, ranks, group);
  }
  EndTree& tree(int rank) { return trees_[static_cast<std::size_t>(rank)]; }
  void report(int rank, const Lookahead& reported) {
    tree(rank).report(reported);
    pass_on(rank);
  }
  int max_sent() const { return std::ranges::max(sent_); }
  int max_received() const { return std::ranges::max(received_); }

 private:
  void pass_on(int rank) {
    for (std::size_t i = 0; i < tree(rank).links().size(); ++i) {
      const auto link = tree(rank).links()[i];
      if (!tree(rank).sends(link) || link.sent == link.current) continue;
      tree(rank).sent(i);
      ++sent_[static_cast<std::size_t>(rank)];
      for (const int to : link.to) receive(to, link);
    }
  }
  void receive(int rank, const EndTree::Link& from) {
    ++received_[static_cast<std::size_t>(rank)];
    const auto links = tree(rank).links();
    const auto is_same = [&](const EndTree::Link& link) {
      return link.from == from.from && link.level == from.level && link.is_result == from.is_result;
    };
    const auto link = std::ranges::find_if(links, is_same);
    ASSERT_NE(link, links.end());
    tree(rank).receive(static_cast<std::size_t>(link - links.begin()), from.current);
    pass_on(rank);
  }

  std::vector<EndTree> trees_;
  std::vector<int> sent_, received_;
};

TEST(EndTree, MessagesPerBunchGrowLogarithmically) {
  constexpr int ranks = 1024, bunches = 10;
  Forest forest(ranks, EndTree::group_size);
  std::mt19937 random(1);
  std::vector<int> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  for (int bunch = 1; bunch <= bunches; ++bunch) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int rank : order) forest.report(rank, {.until = 16 * bunch});
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(forest.tree(rank).outcome(16 * bunch - 1)) << rank;
      ASSERT_FALSE(forest.tree(rank).outcome(16 * bunch)) << rank;
    }
  }
  // Three levels: in each a message to the group and one from each other member, and the results on the way back.
  EXPECT_LE(forest.max_sent(), bunches * 5);
  EXPECT_LE(forest.max_received(), bunches * (3 * 15 + 1));
}

TEST(EndTree, AllRanksFindTheSameEndForAnyGroupSize) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 40);
    Forest forest(ranks, 2 + static_cast<int>(random() % 4));
    Lookahead end{.until = 1000};
    std::vector<Lookahead> last;
    for (int rank = 0; rank < ranks; ++rank) {
      Lookahead own{.until = static_cast<std::int64_t>(random() % 20),
                    .kind = random() % 3 ? Kind::ended : Kind::failed};
      if (own.kind == Kind::failed) own.failed_rank = rank;
      last.push_back(own);
      end = earlier(end, own);
    }
    std::vector<std::int64_t> reported(last.size(), 0);
    std::vector<int> left(last.size());
    std::iota(left.begin(), left.end(), 0);
    while (!left.empty()) {
      const auto at = random() % left.size();
      const int rank = left[at];
      auto& until = reported[static_cast<std::size_t>(rank)];
      const auto& own = last[static_cast<std::size_t>(rank)];
      until = std::min(own.until, until + static_cast<std::int64_t>(random() % 8));
      const bool is_last = until == own.until && random() % 2 == 0;
      forest.report(rank, is_last ? own : Lookahead{.until = until});
      if (is_last) left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto outcome = forest.tree(rank).outcome(end.until);
      ASSERT_TRUE(outcome) << "seed " << seed << ", rank " << rank;
      EXPECT_EQ(outcome->kind, end.kind);
      EXPECT_EQ(std::max(outcome->failed_rank, 0), end.failed_rank);
      if (end.until > 0) {
        EXPECT_EQ(forest.tree(rank).outcome(end.until - 1)->kind, Kind::there);
      }
    }
  }
}

TEST(Lookahead, SurvivesEncodingAndRejectsInvalidBytes) {
  const Failure failure{.stage = "map", .item = 3, .message = "no"};
  for (const Lookahead& lookahead :
       {Lookahead{.until = 5}, Lookahead{.until = 6, .kind = Kind::ended}, Lookahead{7, Kind::failed, 2, failure}}) {
    const Bytes bytes = encode(lookahead);
    EXPECT_EQ(decode<Lookahead>(bytes), lookahead);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_THROW(decode<Lookahead>(ByteView(bytes).first(cut)), CorruptMessage);
    }
  }
  EXPECT_THROW(decode<Lookahead>(encode(Lookahead{.until = -1})), CorruptMessage);
  EXPECT_THROW(decode<Lookahead>(encode(Lookahead{.kind = static_cast<Kind>(4)})), CorruptMessage);
}

}  // namespace
}  // namespace levada::pipeline
