// Sums that are made under the engine, in an order of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "levada/base/error.h"
#include "levada/base/fault_testing.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/p2p/in_process_wire_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Handle = std::shared_ptr<Engine>;

/// Their sum is 0 from the first of three ranks to the last, and 1 from the last to the first, as this wire adds up.
float given(int rank) {
  return rank == 0 ? 1.0F : rank == 1 ? 1e8F : -1e8F;
}

TEST(SumsUnderTheEngine, HaveItsOrderWhereTheyAreAskedForAndThatOfRanksElsewhere) {
  const auto body = [](const Handle& engine) {
    const float own = given(engine->info().rank);
    for (const bool any_order : {false, true}) {
      Bucketer bucketer({.any_order = any_order});
      const Tensor input = Tensor::of<float>({3}, {own, own, own});
      const auto one = bucketer.reduce_scatter(engine, input, ReduceOp::sum);
      const auto two = bucketer.all_reduce(engine, input, ReduceOp::sum);
      bucketer.flush();
      EXPECT_THAT(one.wait().as<float>(), ElementsAre(any_order ? 1 : 0));
      EXPECT_THAT(two.wait().as<float>(), ::testing::Each(any_order ? 1 : 0));
    }
  };
  EXPECT_EQ(p2p::test::run_ranks(3, body), "");
}

TEST(SumsUnderTheEngine, AreDividedOnceForAnAverage) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer({.any_order = true});
    const auto own = static_cast<float>(engine->info().rank);
    const auto average = bucketer.reduce_scatter(engine, Tensor::of<float>({2}, {own, own + 10}), ReduceOp::average);
    EXPECT_THAT(average.wait().as<float>(), ElementsAre(engine->info().rank == 0 ? 0.5 : 10.5));
  };
  EXPECT_EQ(p2p::test::run_ranks(2, body), "");
}

TEST(SumsUnderTheEngine, AreNotBegunWhereRanksDisagree) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer({.any_order = true});
    const std::int64_t elements = engine->info().rank == 1 ? 8 : 4;
    bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {2}), ReduceOp::sum);
    bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {elements}), ReduceOp::sum);
    EXPECT_THAT(fault_of([&] { bucketer.flush(); }),
                HasSubstr("input 1 is float32 [2] on rank 0, float32 [4] on rank 1"));
    const auto later = bucketer.reduce_scatter(engine, Tensor::of<float>({2}, {1, 2}), ReduceOp::sum);
    EXPECT_THAT(later.wait().as<float>(), ElementsAre(engine->info().rank == 0 ? 2 : 4));
  };
  EXPECT_EQ(p2p::test::run_ranks(2, body), "");
}

TEST(SumsUnderTheEngine, SayWhichRankWasLost) {
  p2p::test::Post post(2);
  auto engines = p2p::test::make_engines(post);
  std::thread peer([engine = std::move(engines[1])]() mutable {
    Bucketer bucketer({.timeout = std::chrono::seconds(20), .any_order = true});
    const Tensor input = Tensor::zeros(dtypes::float32, {2});
    static_cast<void>(fault_of([&] {
      for (int i = 0; i < 3; ++i) static_cast<void>(bucketer.reduce_scatter(engine, input, ReduceOp::sum).wait());
    }));
  });
  {
    Bucketer bucketer({.any_order = true});
    const Tensor input = Tensor::zeros(dtypes::float32, {2});
    for (int i = 0; i < 3; ++i) static_cast<void>(bucketer.reduce_scatter(engines[0], input, ReduceOp::sum).wait());
    const auto waiting = bucketer.all_reduce(engines[0], input, ReduceOp::sum);
    post.lose(1);
    EXPECT_EQ(conformance::lost_rank([&] { static_cast<void>(waiting.wait()); }), 1);
  }
  peer.join();
  engines.clear();
}

}  // namespace
}  // namespace levada
