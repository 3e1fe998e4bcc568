// When callbacks run depends only on what ranks enqueue, not on what has been reduced by then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/fault_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using ::testing::ElementsAre;

using Handle = std::shared_ptr<Engine>;

constexpr std::int64_t num_elements = 64;

/// Returns an input whose sum identifies its number. All inputs have the same shape.
Tensor numbered(const Engine& engine, int number) {
  Tensor made = Tensor::empty(dtypes::float32, {num_elements * engine.info().size});
  std::ranges::fill(made.mutable_as<float>(), static_cast<float>(number));
  return made;
}

std::int64_t bytes_of_one(const Engine& engine) {
  return num_elements * std::int64_t{sizeof(float)} * engine.info().size;
}

/// A rank that enqueues at random, alike on all ranks, from callbacks too, and delays itself unlike any other rank.
class Player {
 public:
  Player(const Handle& engine, unsigned seed)
      : engine_(engine),
        seed_(seed),
        dawdling_(seed * 16 + static_cast<unsigned>(engine->info().rank)),
        bucketer_({.capacity = static_cast<std::int64_t>(1 + seed % 3) * bytes_of_one(*engine),
                   .in_flight = 1 + static_cast<int>(seed % 3),
                   .timeout = std::chrono::seconds(30)}) {}

  /// Returns a log of its actions, including errors.
  std::vector<std::string> play() {
    std::mt19937 random(seed_);
    for (int n = 0; n < 40; ++n) {
      dawdle();
      enqueue(n, random() % 16);
      const auto chance = random() % 16;
      if (chance == 0) bucketer_.flush();
      else if (chance == 1) static_cast<void>(handles_[random() % handles_.size()].wait());
    }
    bucketer_.flush();
    return std::move(log_);
  }

 private:
  void dawdle() {
    std::this_thread::sleep_for(std::chrono::microseconds(dawdling_() % 4 == 0 ? dawdling_() % 500 : 0));
  }

  void enqueue(int number, unsigned chance) {
    log_.push_back("enqueues " + std::to_string(number));
    const auto callback = [this, number](const Tensor& result) { judge(number, result); };
    if (chance == 0) {
      handles_.push_back(bucketer_.all_reduce(engine_, numbered(*engine_, number), ReduceOp::sum, callback));
    } else if (chance == 1) {
      const Tensor large = Tensor::zeros(dtypes::float32, {16 * num_elements * engine_->info().size});
      handles_.push_back(
          bucketer_.reduce_scatter(engine_, large, ReduceOp::sum, [this, number](const Tensor&) { follow(number); }));
    } else {
      handles_.push_back(bucketer_.reduce_scatter(engine_, numbered(*engine_, number), ReduceOp::sum, callback));
    }
  }

  void judge(int number, const Tensor& result) {
    const float sum = static_cast<float>(number * engine_->info().size);
    for (const float value : result.as<float>()) {
      if (value == sum) continue;
      log_.push_back("wrong sum: " + std::to_string(value) + " on rank " + std::to_string(engine_->info().rank));
      break;
    }
    follow(number);
  }

  void follow(int number) {
    log_.push_back("called back for " + std::to_string(number));
    dawdle();
    std::mt19937 random(seed_ * 100'000 + static_cast<unsigned>(number));
    for (int more = 0; more < 2; ++more) {
      if (number < 1000 && random() % 2 == 0) enqueue(1000 * (number + 1) + more, random() % 16);
    }
  }

  Handle engine_;
  unsigned seed_;
  std::mt19937 dawdling_;
  Bucketer bucketer_;
  std::vector<Bucketer::Handle> handles_;
  std::vector<std::string> log_;
};

void plays_alike(const Handle& engine, unsigned seed) {
  const auto log = Player(engine, seed).play();
  std::string all;
  for (const std::string& line : log) all += line + "\n";
  const auto logs = agree(*engine, as_bytes(all), Deadline::after(std::chrono::seconds(30)), "test");
  for (const Bytes& other : logs) {
    ASSERT_EQ(all, std::string(reinterpret_cast<const char*>(other.data()), other.size())) << "seed " << seed;
  }
  EXPECT_EQ(all.find("wrong sum"), std::string::npos) << all;
}

TEST(BucketerCallbacks, EnqueueAtTheSamePlaceOnEveryRankDespiteDelays) {
  for (const int ranks : {2, 3, 4}) {
    for (unsigned seed = 0; seed < 25; ++seed) {
      inproc::run_ranks(ranks, [&](const Handle& engine) { plays_alike(engine, seed); });
    }
  }
}

TEST(BucketerCallbacks, EnqueueAtTheSamePlaceOnEveryRankOverMessages) {
  for (unsigned seed = 100; seed < 106; ++seed) {
    EXPECT_EQ(p2p::test::run_ranks(3, [&](const Handle& engine) { plays_alike(engine, seed); }), "");
  }
}

/// Enqueues inputs that fill a bucket each; the callback of input n records n.
struct OneEach {
  Handle engine;
  Bucketer& bucketer;
  std::vector<int>& called;

  Bucketer::Handle operator()(int number) const {
    return bucketer.reduce_scatter(engine, numbered(*engine, number), ReduceOp::sum,
                                   [&called = called, number](const Tensor&) { called.push_back(number); });
  }
};

TEST(BucketerCallbacks, RunOnceTheInFlightLimitIsReached) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.capacity = bytes_of_one(*engine), .in_flight = 2});
    std::vector<int> called;
    const OneEach enqueue{engine, bucketer, called};
    for (const int n : {1, 2, 3}) enqueue(n);
    const auto second = enqueue(4);  // launches 3
    EXPECT_THAT(called, ElementsAre(1));
    enqueue(5);
    EXPECT_THAT(called, ElementsAre(1, 2));
    static_cast<void>(second.wait());
    EXPECT_THAT(called, ElementsAre(1, 2, 3, 4));
    bucketer.flush();
    EXPECT_THAT(called, ElementsAre(1, 2, 3, 4, 5));
  });
}

TEST(BucketerCallbacks, RunAtTheSamePlacesForAllCollectives) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.in_flight = 2});
    std::vector<int> called;
    const auto note = [&called](int number) { return [&called, number](const Tensor&) { called.push_back(number); }; };
    bucketer.all_reduce(engine, numbered(*engine, 1), ReduceOp::sum, note(1));
    bucketer.all_gather(engine, numbered(*engine, 2), note(2));
    EXPECT_THAT(called, ElementsAre());
    bucketer.all_reduce(engine, numbered(*engine, 3), ReduceOp::sum, note(3));
    EXPECT_THAT(called, ElementsAre(1));
    bucketer.all_gather(engine, numbered(*engine, 4), note(4));
    EXPECT_THAT(called, ElementsAre(1, 2));
    bucketer.flush();
    EXPECT_THAT(called, ElementsAre(1, 2, 3, 4));
  });
}

TEST(Bucketer, OverlappingGroupsRunAheadOfEachOther) {
  inproc::run_ranks(3, [](const Handle& engine) {
    const int rank = engine->info().rank;
    // The groups of each rank, in the order in which it uses them: {0, 1}, {1, 2} and {0, 2} in a circle.
    const std::vector<std::vector<int>> orders[] = {{{0, 1}, {0, 2}}, {{1, 2}, {0, 1}}, {{0, 2}, {1, 2}}};
    const std::vector<std::vector<int>> all = {{0, 1}, {0, 2}, {1, 2}};
    std::map<std::vector<int>, Handle> groups;
    for (const auto& ranks : all) {
      if (std::ranges::count(ranks, rank) > 0) groups[ranks] = engine->subgroup(ranks, "pair");
    }
    Bucketer bucketer({.capacity = 2 * num_elements * std::int64_t{sizeof(float)},
                       .in_flight = 2,
                       .timeout = std::chrono::seconds(20)});
    std::vector<int> called;
    for (const auto& ranks : orders[rank]) {
      const OneEach enqueue{groups.at(ranks), bucketer, called};
      for (const int n : {1, 2, 3}) enqueue(n);
    }
    EXPECT_EQ(fault_of([&] { bucketer.flush(); }), "no fault");
    EXPECT_EQ(called.size(), 6U);
    agree(*engine, {}, Deadline::after(std::chrono::seconds(60)), "test");
  });
}

TEST(Bucketer, RejectsConcurrentCalls) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    std::string refused[4];
    const auto handle = bucketer.reduce_scatter(engine, numbered(*engine, 1), ReduceOp::sum, [&](const Tensor&) {
      std::thread([&] {
        refused[0] = fault_of([&] { bucketer.reduce_scatter(engine, numbered(*engine, 2), ReduceOp::sum); });
        refused[1] = fault_of([&] { bucketer.all_reduce(engine, numbered(*engine, 2), ReduceOp::sum); });
        refused[2] = fault_of([&] { bucketer.flush(); });
        refused[3] = fault_of([&] { static_cast<void>(bucketer.stats()); });
      }).join();
    });
    bucketer.flush();
    for (const std::string& each : refused) {
      EXPECT_EQ(each,
                "InvalidArgument: a call of this bucketer is under way on another thread; let one thread at a time use "
                "it");
    }
    std::thread([&] { EXPECT_EQ(bucketer.stats().inputs, 1); }).join();
  });
}

TEST(Bucketer, RejectsAnAllGatherOfPackedElements) {
  const auto engine = inproc::make_group(1).front();
  Bucketer bucketer;
  const Tensor packed = Tensor::zeros(dtypes::float4_e2m1fn, {3});
  EXPECT_EQ(fault_of([&] { bucketer.all_gather(engine, packed); }),
            "Unsupported: all-gather does not support float4_e2m1fn: its elements are smaller than a byte");
}

TEST(Bucketer, EndsTheGroupIfItsPollThrows) {
  struct Interruption {};
  for (const bool in_background : {false, true}) {
    inproc::run_ranks(2, [in_background](const Handle& engine) {
      if (engine->info().rank == 1) {
        EXPECT_THAT(fault_of([&] { agree(*engine, {}, Deadline::after(std::chrono::seconds(60)), "test"); }),
                    testing::HasSubstr("a rank was interrupted in a reduction"));
        return;
      }
      Bucketer bucketer({.capacity = bytes_of_one(*engine), .poll = [] { throw Interruption(); }});
      const auto first = bucketer.reduce_scatter(engine, numbered(*engine, 1), ReduceOp::sum);
      if (in_background) bucketer.reduce_scatter(engine, numbered(*engine, 2), ReduceOp::sum);
      EXPECT_THROW(static_cast<void>(first.wait()), Interruption);
      EXPECT_THAT(fault_of([&] { static_cast<void>(first.wait()); }), testing::HasSubstr("interrupted"));
    });
  }
}

}  // namespace
}  // namespace levada
