// Ranks that call different collectives of one group, ranks that leave it, and ranks that time out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/base/fault_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

using Handle = std::shared_ptr<Engine>;
using Call = std::function<Bucketer::Handle(Bucketer&, const Handle&)>;

/// Makes call i on rank i of a group, in one bucketer, and then a collective that all ranks call alike. Returns each
/// rank's exception from the first call. Expects the second one to succeed.
class Calls {
 public:
  explicit Calls(std::vector<Call> calls) : calls_(std::move(calls)), faults_(calls_.size()) {
    options_.timeout = std::chrono::seconds(20);
  }

  void run(const Handle& engine) {
    const auto rank = static_cast<std::size_t>(engine->info().rank);
    Bucketer bucketer(options_);
    faults_[rank] = fault_of([&] { static_cast<void>(calls_[rank](bucketer, engine).wait()); });
    static_cast<void>(fault_of([&] { bucketer.flush(); }));
    const auto sum = bucketer.all_reduce(engine, Tensor::of<float>({2}, {1, 2}), ReduceOp::sum);
    const auto size = static_cast<float>(engine->info().size);
    EXPECT_THAT(sum.wait().as<float>(), ElementsAre(size, 2 * size));
  }
  std::vector<std::string> over_messages() && {
    EXPECT_EQ(p2p::test::run_ranks(static_cast<int>(calls_.size()), [this](const Handle& engine) { run(engine); }), "");
    return std::move(faults_);
  }
  std::vector<std::string> over_shared_memory() && {
    inproc::run_ranks(static_cast<int>(calls_.size()), [this](const Handle& engine) { run(engine); });
    return std::move(faults_);
  }

 private:
  std::vector<Call> calls_;
  BucketerOptions options_;
  std::vector<std::string> faults_;
};

Tensor zeros(DType dtype = dtypes::float32) {
  return Tensor::zeros(dtype, {6});
}

Bucketer::Handle gather(Bucketer& bucketer, const Handle& engine) {
  return bucketer.all_gather(engine, zeros());
}
Bucketer::Handle scatter(Bucketer& bucketer, const Handle& engine) {
  return bucketer.reduce_scatter(engine, zeros(), ReduceOp::sum);
}
Bucketer::Handle reduce(Bucketer& bucketer, const Handle& engine) {
  return bucketer.all_reduce(engine, zeros(), ReduceOp::sum);
}
Bucketer::Handle scatter_halves(Bucketer& bucketer, const Handle& engine) {
  return bucketer.reduce_scatter(engine, zeros(dtypes::bfloat16), ReduceOp::sum);
}

TEST(RanksThatCallDifferentCollectives, AllNameBothCalls) {
  const std::vector<Call> calls = {gather, gather, scatter};
  const auto expected =
      HasSubstr("InvalidArgument: ranks disagree about collective 1: rank 0 calls all-gather, rank 2 reduce-scatter");
  EXPECT_THAT(Calls(calls).over_messages(), Each(expected));
  EXPECT_THAT(Calls(calls).over_shared_memory(), Each(expected));
}

TEST(RanksThatCallDifferentCollectives, AllFailWhicheverCallIsOnRankZero) {
  const auto expected = HasSubstr("rank 0 calls reduce-scatter, rank 1 all-reduce");
  EXPECT_THAT(Calls({scatter, reduce, gather}).over_messages(), Each(expected));
}

TEST(RanksThatCallDifferentCollectives, AllFailIfTheirTypesDiffer) {
  const auto expected = HasSubstr("input 0 is float32 [2] on rank 0, bfloat16 [2] on rank 1");
  EXPECT_THAT(Calls({scatter, scatter_halves, scatter}).over_messages(), Each(expected));
}

TEST(RanksThatCallDifferentCollectives, AgreeAgainAfterManyDisagreements) {
  const Call often = [](Bucketer& bucketer, const Handle& engine) {
    const int rank = engine->info().rank;
    for (int i = 0; i < 20; ++i) {
      const bool gathers = (i + rank) % 2 == 0;
      const auto one = gathers ? gather(bucketer, engine) : scatter(bucketer, engine);
      EXPECT_THAT(fault_of([&] { static_cast<void>(one.wait()); }), HasSubstr("ranks disagree about collective"));
      const auto same = reduce(bucketer, engine);
      EXPECT_EQ(fault_of([&] { static_cast<void>(same.wait()); }), "no fault");
    }
    return scatter(bucketer, engine);
  };
  EXPECT_THAT(Calls({often, often, often}).over_messages(), Each("no fault"));
}

TEST(RankThatLeaves, IsNamedWithItsPostedException) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    static_cast<void>(reduce(bucketer, engine).wait());
    if (engine->info().rank == 1) return engine->post(Status::make("raised", -1, -1, "ValueError: loss is NaN"));
    EXPECT_THAT(fault_of([&] { static_cast<void>(reduce(bucketer, engine).wait()); }),
                HasSubstr("PeerLost: rank 1 left with ValueError: loss is NaN before all-reduce 2"));
  });
}

TEST(RankThatTimesOut, EndsTheGroupWithItsTimeout) {
  inproc::run_ranks(2, [](const Handle& engine) {
    const auto fault_of_sum = [&](Duration timeout) {
      Bucketer bucketer({.timeout = timeout});
      return fault_of([&] { static_cast<void>(reduce(bucketer, engine).wait()); });
    };
    if (engine->info().rank == 0) {
      EXPECT_THAT(fault_of_sum(std::chrono::milliseconds(200)),
                  MatchesRegex("Timeout: rank 0 waited .* in all-reduce.*"));
    }
    const auto expected = MatchesRegex("PeerLost: rank 0 left .* with Timeout: rank 0 waited .* in all-reduce.*");
    EXPECT_THAT(fault_of([&] { agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test"); }), expected);
    EXPECT_THAT(fault_of_sum(std::chrono::seconds(30)), expected);
  });
}

}  // namespace
}  // namespace levada
