// Several Bucketers and groups on each rank, in any order: every sum has only the inputs of one Bucketer in one group.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
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
using ::testing::SizeIs;

using Handle = std::shared_ptr<Engine>;
constexpr Duration timeout = std::chrono::seconds(20);

Tensor value(float of) {
  return Tensor::of<float>({2}, {of, of});
}

/// Returns the value that each rank adds in call `call` of object `object`; objects differ by thousands.
float given(int object, int call) {
  return static_cast<float>(1000 * (object + 1) + 10 * call);
}

/// Each object is used by its own thread, started in the rank's order of objects.
void reduces_with_each_object(const Handle& engine, int objects, unsigned seed) {
  std::vector<std::unique_ptr<Bucketer>> made;
  for (int object = 0; object < objects; ++object) {
    made.push_back(std::make_unique<Bucketer>(
        BucketerOptions{.capacity = 0, .timeout = timeout, .name = fmt::format("object {}", object)}));
  }
  std::mt19937 random(seed + 100 * static_cast<unsigned>(engine->info().rank));
  std::vector<int> order(static_cast<std::size_t>(objects));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::vector<std::thread> threads;
  for (const int object : order) {
    threads.emplace_back([&, object] {
      for (int call = 0; call < 4; ++call) {
        const auto sum =
            made[static_cast<std::size_t>(object)]->all_reduce(engine, value(given(object, call)), ReduceOp::average);
        EXPECT_THAT(sum.wait().as<float>(), Each(given(object, call))) << "object " << object << ", call " << call;
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SeveralBucketers, DoNotMixTheirSumsInAnyOrderOfUse) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    inproc::run_ranks(3, [&](const Handle& engine) { reduces_with_each_object(engine, 4, seed); });
  }
  EXPECT_EQ(p2p::test::run_ranks(2, [](const Handle& engine) { reduces_with_each_object(engine, 3, 7); }), "");
}

TEST(SeveralBucketers, MustHaveDifferentNamesInOneGroup) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer first({.name = "sums"});
    {
      Bucketer second({.name = "sums"});
      static_cast<void>(first.all_reduce(engine, value(1), ReduceOp::sum).wait());
      EXPECT_THAT(fault_of([&] { second.all_reduce(engine, value(1), ReduceOp::sum); }),
                  AllOf(HasSubstr("InvalidArgument"), HasSubstr("under the name 'sums'; give each object")));
    }
    Bucketer third({.name = "others"});
    EXPECT_THAT(third.all_reduce(engine, value(1), ReduceOp::sum).wait().as<float>(), Each(2));
  });
}

TEST(RanksInDifferentBucketers, TimeOutWithTheNameOfTheOther) {
  inproc::run_ranks(2, [](const Handle& engine) {
    const bool is_first = engine->info().rank == 0;
    Bucketer bucketer({.timeout = is_first ? std::chrono::milliseconds(400) : timeout, .name = is_first ? "A" : "B"});
    const auto expected = AllOf(HasSubstr("waited"), HasSubstr("all-reduce step 1, B, waiting for rank 0"));
    EXPECT_THAT(fault_of([&] { static_cast<void>(bucketer.all_reduce(engine, value(1), ReduceOp::sum).wait()); }),
                expected);
  });
}

/// A step of a rank's program: an input in one of its groups, a wait or a flush. Callers leave out inputs.
struct Op {
  enum class Kind { reduce, wait, flush } kind = Kind::reduce;
  int group = 0;
};

std::vector<Op> draw(unsigned seed, int groups) {
  std::mt19937 random(seed);
  std::vector<Op> ops;
  for (int i = 0; i < 40; ++i) {
    const auto chance = random() % 10;
    ops.push_back({.kind = chance < 2   ? Op::Kind::wait
                           : chance < 3 ? Op::Kind::flush
                                        : Op::Kind::reduce,
                   .group = static_cast<int>(random()) % groups});
    ops.back().group = std::abs(ops.back().group);
  }
  return ops;
}

TEST(OverlappingGroups, DoNotAffectEachOther) {
  // Groups 0 = {0, 1}, 1 = {0, 2}, 2 = {1, 2}: each rank is in two. A wait in one group closes no bucket of another.
  const std::vector<std::vector<int>> members = {{0, 1}, {0, 2}, {1, 2}};
  for (unsigned seed = 0; seed < 20; ++seed) {
    inproc::run_ranks(3, [&](const Handle& engine) {
      std::vector<Handle> groups;
      for (const auto& ranks : members) {
        const bool is_in = std::ranges::find(ranks, engine->info().rank) != ranks.end();
        groups.push_back(is_in ? engine->subgroup(ranks, "pair") : nullptr);
      }
      Bucketer bucketer({.capacity = 200, .timeout = timeout});
      std::vector<float> sums;
      std::vector<float> expected;
      int number = 0;
      for (const Op& op : draw(seed, 3)) {
        const Handle& group = groups[static_cast<std::size_t>(op.group)];
        ++number;
        if (op.kind == Op::Kind::flush) {
          bucketer.flush();
        } else if (group) {
          const auto handle = bucketer.reduce_scatter(group, value(static_cast<float>(number)), ReduceOp::sum,
                                                      [&](const Tensor& sum) { sums.push_back(sum.as<float>()[0]); });
          expected.push_back(2 * static_cast<float>(number));
          if (op.kind == Op::Kind::wait) {
            EXPECT_EQ(handle.wait().as<float>()[0], 2 * static_cast<float>(number)) << "seed " << seed;
          }
        }
      }
      bucketer.flush();
      std::ranges::sort(sums);
      EXPECT_EQ(sums, expected) << "seed " << seed;
    });
  }
}

TEST(MissingInput, FailsOnlyItsOwnStep) {
  // Each of several steps enqueues inputs that look alike and flushes. One rank leaves out one of them in one step.
  constexpr int steps = 4, inputs = 5;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const int step_of_fault = static_cast<int>(random() % (steps - 1)), missing = static_cast<int>(random() % inputs);
    const int rank_of_fault = static_cast<int>(random() % 3);
    const std::int64_t capacity = std::vector<std::int64_t>{0, 100, 1 << 20}[random() % 3];
    inproc::run_ranks(3, [&](const Handle& engine) {
      Bucketer bucketer({.capacity = capacity, .timeout = timeout});
      std::vector<std::string> faults;
      int first_fault = -1, later_sums = 0;
      for (int step = 0; step < steps; ++step) {
        for (int input = 0; input < inputs; ++input) {
          const bool is_missing = step == step_of_fault && input == missing && engine->info().rank == rank_of_fault;
          if (is_missing) continue;
          const float given = static_cast<float>(100 * step + input);
          const auto judge = [&, given, step](const Tensor& sum) {
            if (step <= step_of_fault) return;
            ++later_sums;
            EXPECT_EQ(sum.as<float>()[0], given) << "seed " << seed << ", rank " << engine->info().rank;
          };
          static_cast<void>(fault_of([&] {
            const Tensor whole = Tensor::of<float>({3}, {given, given, given});
            bucketer.reduce_scatter(engine, whole, ReduceOp::average, judge);
          }));
        }
        const std::string fault = fault_of([&] { bucketer.flush(); });
        if (fault == "no fault") continue;
        if (faults.empty()) first_fault = step;
        faults.push_back(fault);
      }
      ASSERT_FALSE(faults.empty()) << "seed " << seed << ", rank " << engine->info().rank;
      EXPECT_THAT(faults.front(), ::testing::AllOf(HasSubstr("InvalidArgument: ranks disagree about"),
                                                   ::testing::AnyOf(HasSubstr("flush"), HasSubstr("missing on"))))
          << "in the step of the fault, on every rank";
      EXPECT_EQ(first_fault, step_of_fault);
      EXPECT_EQ(faults.size(), 1) << faults.back();
      EXPECT_EQ(later_sums, inputs * (steps - 1 - step_of_fault)) << "seed " << seed << ", capacity " << capacity;
    });
  }
}

TEST(MissingStep, FailsAllRanksUntilTheNextFlushOnly) {
  for (const int inputs : {1, 3}) {
    for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{1} << 20}) {
      inproc::run_ranks(3, [&](const Handle& engine) {
        const bool lacks = engine->info().rank == 1;
        for (const int step_of_fault : {0, 2}) {
          Bucketer bucketer({.capacity = capacity, .timeout = timeout});
          std::vector<int> wrong, faulty;
          for (int step = 0; step < 7; ++step) {
            for (int input = 0; input < inputs && !(lacks && step == step_of_fault); ++input) {
              const float given = static_cast<float>(100 * step + input);
              bucketer.reduce_scatter(engine, Tensor::of<float>({3}, {given, given, given}), ReduceOp::average,
                                      [&, given, step](const Tensor& sum) {
                                        if (sum.as<float>()[0] != given) wrong.push_back(step);
                                      });
            }
            const std::string fault = fault_of([&] { bucketer.flush(); });
            if (fault == "no fault") continue;
            EXPECT_THAT(fault, HasSubstr("InvalidArgument: ranks disagree about"));
            faulty.push_back(step);
          }
          EXPECT_THAT(wrong, ::testing::IsEmpty());
          EXPECT_EQ(faulty, lacks ? std::vector{step_of_fault + 1} : (std::vector{step_of_fault, step_of_fault + 1}));
        }
      });
    }
  }
}

TEST(MissingInput, FailsOnlyItsOwnStepIfCallbacksEnqueue) {
  for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{1} << 20}) {
    for (const int in_flight : {1, 2}) {
      inproc::run_ranks(2, [&](const Handle& engine) {
        Bucketer bucketer({.capacity = capacity, .in_flight = in_flight, .timeout = timeout});
        std::vector<int> faulty, wrong;
        for (int step = 0; step < 5; ++step) {
          const std::function<void(int, int)> enqueue = [&](int input, int left) {
            const auto given = static_cast<float>(100 * step + input);
            const auto judge = [&, given, input, left](const Tensor& all) {
              for (const float each : all.as<float>()) {
                if (each != given) wrong.push_back(step);
              }
              if (left > 0) enqueue(input + 10, left - 1);
            };
            bucketer.all_gather(engine, Tensor::of<float>({1}, {given}), judge);
          };
          for (int input = 0; input < 4; ++input) {
            if (step == 1 && input == 1 && engine->info().rank == 0) continue;
            static_cast<void>(fault_of([&] { enqueue(input, 2); }));
          }
          if (fault_of([&] { bucketer.flush(); }) != "no fault") faulty.push_back(step);
        }
        EXPECT_THAT(faulty, ::testing::ElementsAre(1)) << "capacity " << capacity << ", in flight " << in_flight;
        std::erase(wrong, 1);
        EXPECT_THAT(wrong, ::testing::IsEmpty());
      });
    }
  }
}

TEST(MissingInput, FailsOnlyItsOwnStepIfItsRanksCallbacksEnqueueMore) {
  // Rank 1 lacks the first input, so sums that look alike are of different inputs, and their callbacks make up for it:
  // both ranks flush at the same place, with callbacks left only on rank 1.
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.in_flight = 5, .timeout = timeout});
    const auto gather = [&] { bucketer.all_gather(engine, Tensor::zeros(dtypes::float32, {3})); };
    const std::function<void(DType, int)> reduce = [&](DType dtype, int more) {
      bucketer.all_reduce(engine, Tensor::zeros(dtype, {3}), ReduceOp::sum, [&reduce, dtype, more](const Tensor&) {
        if (more > 0) reduce(dtype, more - 1);
      });
    };
    if (engine->info().rank == 0) reduce(dtypes::int32, 0);
    reduce(dtypes::int32, 2);
    gather();
    reduce(dtypes::int32, 0);
    reduce(dtypes::int32, 1);
    reduce(dtypes::float32, 0);
    reduce(dtypes::int64, 0);
    EXPECT_THAT(fault_of([&] { bucketer.flush(); }), HasSubstr("InvalidArgument: ranks disagree about"));
    for (int step = 1; step < 3; ++step) {
      reduce(dtypes::int32, 1);
      EXPECT_EQ(fault_of([&] { bucketer.flush(); }), "no fault") << "step " << step;
    }
  });
}

TEST(RanksOfAGroupThatDisagree, AreNamedByTheirJobRanks) {
  inproc::run_ranks(3, [](const Handle& engine) {
    const int rank = engine->info().rank;
    if (rank == 1) return;
    const std::vector<int> ranks = {0, 2};
    const Handle group = engine->subgroup(ranks, "pair");
    Bucketer bucketer({.timeout = timeout, .name = "sums", .job_rank = rank});
    const Tensor input = Tensor::zeros(dtypes::float32, {rank == 0 ? 2 : 4});
    EXPECT_THAT(fault_of([&] { static_cast<void>(bucketer.reduce_scatter(group, input, ReduceOp::sum).wait()); }),
                HasSubstr("ranks disagree about reduce-scatter 1 of sums: input 0 is float32 [1] on rank 0, "
                          "float32 [2] on rank 1 of the group (rank 2 of the job)"));
  });
}

TEST(GroupWithoutOwners, IsLeftByTheNextFlush) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.timeout = timeout});
    std::vector<std::weak_ptr<Engine>> groups;
    std::vector<Bucketer::Handle> handles;
    for (int i = 0; i < 20; ++i) {
      const std::vector<int> ranks = {0, 1};
      const Handle group = engine->subgroup(ranks, "step");
      groups.push_back(group);
      handles.push_back(bucketer.reduce_scatter(group, value(static_cast<float>(i)), ReduceOp::sum));
      bucketer.flush();
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(handles[static_cast<std::size_t>(i)].wait().as<float>()[0], 2 * static_cast<float>(i));
    }
    bucketer.flush();
    EXPECT_TRUE(std::ranges::all_of(groups, [](const auto& group) { return group.expired(); }));
  });
}

}  // namespace
}  // namespace levada
