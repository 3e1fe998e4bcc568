#include "levada/reduce/bucketer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "levada/base/fault_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Handle = std::shared_ptr<Engine>;

/// Returns element i of input n that rank `from` sends to rank `to`: small numbers, so that every sum is exact.
float given(int n, int from, int to, std::size_t i) {
  return static_cast<float>((n * 31 + from * 7 + to * 3 + static_cast<int>(i % 1000)) % 97);
}

float expected(int n, int ranks, int to, std::size_t i) {
  float sum = 0;
  for (int from = 0; from < ranks; ++from) sum += given(n, from, to, i);
  return sum;
}

/// Returns input n of rank `from`, flat: [ranks * elements].
Tensor input(const Engine& engine, int n, std::size_t elements, Tensor to = {}) {
  const auto ranks = static_cast<std::size_t>(engine.info().size);
  if (to.owner() == nullptr) to = Tensor::empty(dtypes::float32, {static_cast<std::int64_t>(ranks * elements)});
  auto values = to.mutable_as<float>();
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < elements; ++i) {
      values[r * elements + i] = given(n, engine.info().rank, static_cast<int>(r), i);
    }
  }
  return to;
}

void expect_sum(const Engine& engine, int n, std::size_t elements, const Tensor& result) {
  const auto values = result.as<float>();
  ASSERT_EQ(values.size(), elements);
  for (std::size_t i = 0; i < elements; ++i) {
    ASSERT_EQ(values[i], expected(n, engine.info().size, engine.info().rank, i)) << "input " << n << ", element " << i;
  }
}

std::vector<TensorView> rows(const Tensor& flat, int ranks) {
  std::vector<TensorView> views;
  const std::int64_t piece = flat.shape()[0] / ranks;
  for (int r = 0; r < ranks; ++r) views.push_back(flat.view().slice(0, r * piece, (r + 1) * piece));
  return views;
}

/// Checks that inputs of any sizes in any order, passed in any way, have the same results as separate reductions.
void reduces_like_one_by_one(const Handle& engine, std::int64_t capacity, unsigned seed) {
  Bucketer bucketer({.capacity = capacity});
  std::mt19937 random(seed);
  constexpr std::size_t sizes[] = {0, 1, 7, 300, 4096, 20'000, 70'000};
  std::vector<std::pair<std::size_t, Bucketer::Handle>> handles;
  int called = 0;
  for (int n = 0; n < 60; ++n) {
    const std::size_t elements = sizes[random() % std::size(sizes)];
    const auto way = random() % 3;
    const auto callback = [&, n, elements](const Tensor& result) {
      expect_sum(*engine, n, elements, result);
      ++called;
    };
    const Tensor own = way == 0 ? Tensor() : input(*engine, n, elements);
    if (way == 0) {
      const auto extent = static_cast<std::int64_t>(elements) * engine->info().size;
      const Tensor placed = input(*engine, n, elements, bucketer.empty(engine, dtypes::float32, {extent}));
      handles.emplace_back(elements, bucketer.reduce_scatter(engine, placed, ReduceOp::sum, callback));
    } else if (way == 1) {
      handles.emplace_back(elements, bucketer.reduce_scatter(engine, own, ReduceOp::sum, callback));
    } else {
      const auto pieces = rows(own, engine->info().size);
      handles.emplace_back(elements, bucketer.reduce_scatter(engine, pieces, ReduceOp::sum, callback));
    }
    if (random() % 10 == 0) expect_sum(*engine, n, elements, handles.back().second.wait());
    if (random() % 20 == 0) bucketer.flush();
  }
  bucketer.flush();
  EXPECT_EQ(called, 60);
  for (std::size_t n = 0; n < handles.size(); ++n) {
    EXPECT_TRUE(handles[n].second.done());
    expect_sum(*engine, static_cast<int>(n), handles[n].first, handles[n].second.wait());
  }
}

TEST(Bucketer, ReducesLikeSeparateReductions) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{100'000}, std::int64_t{25} << 20}) {
      inproc::run_ranks(ranks, [&](const Handle& engine) { reduces_like_one_by_one(engine, capacity, 7); });
    }
  }
}

TEST(Bucketer, RunsTheCallbackOfALargeInputBeforeThoseOfTheOpenBucket) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.capacity = 4096});
    std::vector<std::string> order;
    const auto reduce = [&](const char* name, std::size_t elements) {
      bucketer.reduce_scatter(engine, input(*engine, 0, elements), ReduceOp::sum,
                              [&order, name](const Tensor&) { order.emplace_back(name); });
    };
    reduce("small", 10);
    reduce("big", 5000);
    EXPECT_THAT(order, ElementsAre("big"));
    reduce("small2", 10);
    bucketer.flush();
    EXPECT_THAT(order, ElementsAre("big", "small", "small2"));
    const auto stats = bucketer.stats();
    EXPECT_EQ(stats.inputs, 3);
    EXPECT_EQ(stats.alone, 1);
    EXPECT_EQ(stats.buckets, 1);
  });
}

TEST(Bucketer, AllowsACallbackToEnqueueAgain) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.capacity = 4096});
    int called = 0;
    Bucketer::Callback again = [&, caller = std::this_thread::get_id()](const Tensor& result) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      expect_sum(*engine, called, 100, result);
      if (++called < 5) bucketer.reduce_scatter(engine, input(*engine, called, 100), ReduceOp::sum, again);
    };
    bucketer.reduce_scatter(engine, input(*engine, 0, 100), ReduceOp::sum, again);
    bucketer.flush();
    EXPECT_EQ(called, 5);
  });
}

TEST(Bucketer, RunsTheOtherCallbacksIfOneThrows) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    int called = 0;
    for (int n = 0; n < 4; ++n) {
      bucketer.reduce_scatter(engine, input(*engine, n, 10), ReduceOp::sum, [&called, n](const Tensor&) {
        ++called;
        if (n == 1) throw std::runtime_error("of callback 1");
        if (n == 2) throw std::runtime_error("of callback 2");
      });
    }
    try {
      bucketer.flush();
      FAIL() << "flush() must throw";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "of callback 1");
    }
    EXPECT_EQ(called, 4);
    const auto handle = bucketer.reduce_scatter(engine, input(*engine, 9, 10), ReduceOp::sum);
    bucketer.flush();
    expect_sum(*engine, 9, 10, handle.wait());
  });
}

TEST(Bucketer, WaitClosesTheBucketOfItsInput) {
  inproc::run_ranks(3, [](const Handle& engine) {
    Bucketer bucketer;
    const auto first = bucketer.reduce_scatter(engine, input(*engine, 1, 50), ReduceOp::sum);
    EXPECT_FALSE(first.done());
    expect_sum(*engine, 1, 50, first.wait());
    EXPECT_EQ(bucketer.stats().buckets, 1);
    EXPECT_EQ(bucketer.stats().flushes, 0U);
  });
}

TEST(Bucketer, ReducesInOverlappingSubgroups) {
  inproc::run_ranks(3, [](const Handle& engine) {
    const int rank = engine->info().rank;
    std::vector<std::shared_ptr<Engine>> groups;
    for (const auto& ranks : std::vector<std::vector<int>>{{0, 1}, {1, 2}, {2, 0}}) {
      if (std::count(ranks.begin(), ranks.end(), rank) > 0) groups.push_back(engine->subgroup(ranks, "pair"));
    }
    Bucketer bucketer({.capacity = 10'000});
    std::vector<std::tuple<Engine*, int, Bucketer::Handle>> handles;
    for (int n = 0; n < 40; ++n) {
      for (const auto& group : groups) {
        handles.emplace_back(group.get(), n, bucketer.reduce_scatter(group, input(*group, n, 300), ReduceOp::sum));
      }
    }
    bucketer.flush();
    for (const auto& [group, n, handle] : handles) expect_sum(*group, n, 300, handle.wait());
    agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
  });
}

TEST(Bucketer, PadsIndivisibleInputsWithZeros) {
  inproc::run_ranks(4, [](const Handle& engine) {
    Bucketer bucketer;
    const auto whole = Tensor::of<float>({5, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    const auto handle = bucketer.reduce_scatter(engine, whole, ReduceOp::average);
    bucketer.flush();
    const auto result = handle.wait();
    EXPECT_EQ(result.shape(), Shape({2, 2}));
    const std::vector<std::vector<float>> parts = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 0, 0}, {0, 0, 0, 0}};
    const auto values = result.as<float>();
    EXPECT_THAT(values, ::testing::ElementsAreArray(parts[static_cast<std::size_t>(engine->info().rank)]));
  });
}

TEST(Bucketer, ReducesNumbersOfSeveralTypesAndTensorsWithoutDimensions) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    const auto scalar = Tensor::of<std::int64_t>({}, {(std::int64_t{1} << 53) + 1});
    const TensorView both[] = {scalar, scalar};
    const auto integer = bucketer.reduce_scatter(engine, both, ReduceOp::sum);
    const auto real = bucketer.reduce_scatter(engine, Tensor::of<double>({4}, {1, 2, 3, 4}), ReduceOp::average);
    bucketer.flush();
    EXPECT_EQ(integer.wait().shape(), Shape());
    EXPECT_EQ(integer.wait().as<std::int64_t>()[0], (std::int64_t{1} << 54) + 2);
    EXPECT_EQ(real.wait().as<double>()[1], engine->info().rank == 0 ? 2 : 4);
    EXPECT_EQ(bucketer.stats().buckets, 2);
  });
}

TEST(Bucketer, AcceptsStridedInputs) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    const auto matrix = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
    const TensorView column(dtypes::float32, {3, 2}, {1, 3}, matrix.view().data());
    const TensorView both[] = {column, column};
    const auto handle = bucketer.reduce_scatter(engine, both, ReduceOp::sum);
    bucketer.flush();
    EXPECT_THAT(handle.wait().as<float>(), ElementsAre(2, 8, 4, 10, 6, 12));
  });
}

TEST(Bucketer, AllReducesAndAllGathers) {
  for (const int ranks : {1, 2, 3, 4}) {
    inproc::run_ranks(ranks, [ranks](const Handle& engine) {
      Bucketer bucketer;
      const auto mine = Tensor::of<float>({5}, {1, 2, 3, 4, static_cast<float>(engine->info().rank)});
      const auto sum = bucketer.all_reduce(engine, mine, ReduceOp::sum);
      const auto all = bucketer.all_gather(engine, mine);
      const auto n = static_cast<float>(ranks);
      EXPECT_THAT(sum.wait().as<float>(), ElementsAre(n, 2 * n, 3 * n, 4 * n, n * (n - 1) / 2));
      EXPECT_EQ(all.wait().shape(), Shape({ranks, 5}));
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(all.wait().as<float>()[static_cast<std::size_t>(r) * 5 + 4], r);
    });
  }
}

TEST(Bucketer, NamesTheRankWithAnotherShape) {
  inproc::run_ranks(3, [](const Handle& engine) {
    Bucketer bucketer;
    const std::size_t elements = engine->info().rank == 2 ? 6 : 5;
    const auto same = bucketer.reduce_scatter(engine, input(*engine, 0, 4), ReduceOp::sum);
    const auto other = bucketer.reduce_scatter(engine, input(*engine, 1, elements), ReduceOp::sum);
    const auto sentence =
        "InvalidArgument: ranks disagree about reduce-scatter 1: input 1 is float32 [5] on rank 0, "
        "float32 [6] on rank 2 (at input 1 after 0 flushes)";
    EXPECT_EQ(fault_of([&] { bucketer.flush(); }), sentence);
    EXPECT_EQ(fault_of([&] { static_cast<void>(same.wait()); }), sentence);
    const auto later = bucketer.reduce_scatter(engine, input(*engine, 2, 4), ReduceOp::sum);
    bucketer.flush();
    expect_sum(*engine, 2, 4, later.wait());
  });
}

TEST(Bucketer, NamesTheInputThatCannotBeReduced) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    const Tensor a = Tensor::zeros(dtypes::float32, {4});
    const Tensor b = Tensor::zeros(dtypes::float32, {5});
    const Tensor c = Tensor::zeros(dtypes::float64, {4});
    const Tensor d = Tensor::zeros(dtypes::boolean, {4});
    const auto fault = [&](std::initializer_list<TensorView> inputs) {
      return fault_of(
          [&] { bucketer.reduce_scatter(engine, std::span(inputs.begin(), inputs.size()), ReduceOp::sum); });
    };
    EXPECT_THAT(
        fault({a}),
        HasSubstr("InvalidArgument: a reduce-scatter takes one tensor for each of the 2 ranks of the group, got 1"));
    EXPECT_THAT(fault({a, b}), HasSubstr("tensor 1 is float32 [5], tensor 0 is float32 [4]"));
    EXPECT_THAT(fault({a, c}), HasSubstr("tensor 1 is float64 [4]"));
    EXPECT_THAT(fault({d, d}), HasSubstr("Unsupported: sum does not support bool"));
    EXPECT_THAT(fault_of([&] { bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {}), ReduceOp::sum); }),
                HasSubstr("without dimensions cannot be divided among ranks"));
    EXPECT_THAT(fault_of([&] { bucketer.empty(engine, dtypes::float32, {5}); }),
                HasSubstr("is not divisible by the 2"));
    EXPECT_THAT(fault_of([&] { bucketer.empty(engine, dtypes::float32, {-4}); }), HasSubstr("has the shape [-4]"));
    EXPECT_THAT(fault_of([] { Bucketer none({.in_flight = 0}); }), HasSubstr("in_flight must be at least 1, got 0"));
    EXPECT_EQ(bucketer.stats().inputs, 0);
  });
}

TEST(Bucketer, RejectsTeardownWhileInputsArePending) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum);
    EXPECT_THAT(fault_of([&] { bucketer.teardown(); }), HasSubstr("1 inputs are not reduced yet; call flush() before"));
    bucketer.flush();
    bucketer.teardown();
    const auto handle = bucketer.reduce_scatter(engine, input(*engine, 1, 40), ReduceOp::sum);
    bucketer.flush();
    expect_sum(*engine, 1, 40, handle.wait());
  });
}

TEST(Bucketer, GathersIntoTheHeapBeyondTheEnginesMemory) {
  const auto body = [](const Handle& engine) {
    constexpr std::int64_t elements = std::int64_t{1} << 19;
    Bucketer bucketer;
    EXPECT_THAT(fault_of([&] { static_cast<void>(engine->try_allocate(std::size_t{6} << 20)); }),
                HasSubstr("InvalidArgument"));
    Tensor mine = Tensor::zeros(dtypes::float32, {elements});
    std::ranges::fill(mine.mutable_as<float>(), static_cast<float>(engine->info().rank));
    const Tensor all = bucketer.all_gather(engine, mine).wait();
    EXPECT_EQ(all.shape(), (Shape{3, elements}));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(std::ranges::count(all.as<float>(), static_cast<float>(rank)), elements);
    }
  };
  inproc::run_ranks(3, body, {.memory_bytes = std::size_t{5} << 20});
}

/// Waits on the second rank until the first has been interrupted.
void expect_interruption(Engine& engine) {
  EXPECT_THAT(fault_of([&] { agree(engine, {}, Deadline::after(std::chrono::seconds(60)), "test"); }),
              HasSubstr("interrupted"));
}

/// Returns a poll that throws during the first wait.
std::function<void()> interrupted_once() {
  return [n = std::make_shared<int>(0)] {
    if ((*n)++ == 0) throw InvalidArgument("of poll");
  };
}

TEST(Bucketer, InterruptedFlushEndsEveryOpenBucket) {
  inproc::run_ranks(2, [](const Handle& engine) {
    if (engine->info().rank == 1) return expect_interruption(*engine);
    Bucketer bucketer({.in_flight = 1, .poll = interrupted_once()});
    std::vector<Bucketer::Handle> handles;
    for (const DType dtype : {dtypes::float32, dtypes::float64, dtypes::int32, dtypes::int64}) {
      handles.push_back(bucketer.reduce_scatter(engine, Tensor::zeros(dtype, {8}), ReduceOp::sum));
    }
    EXPECT_THAT(fault_of([&] { bucketer.flush(); }), HasSubstr("of poll"));
    EXPECT_THAT(fault_of([&] { bucketer.flush(); }), HasSubstr("interrupted"));
    bucketer.flush();
    for (const auto& handle : handles) {
      EXPECT_THAT(fault_of([&] { static_cast<void>(handle.wait()); }), HasSubstr("interrupted"));
      EXPECT_THAT(fault_of([&] { static_cast<void>(handle.get()); }), HasSubstr("interrupted"));
    }
  });
}

TEST(Bucketer, InterruptedLaunchDoesNotEnqueueTheInput) {
  inproc::run_ranks(2, [](const Handle& engine) {
    if (engine->info().rank == 1) return expect_interruption(*engine);
    Bucketer bucketer({.capacity = 320, .in_flight = 1, .poll = interrupted_once()});
    const auto enqueue = [&] { return bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum); };
    enqueue();
    const auto second = enqueue();
    EXPECT_THAT(fault_of([&] { enqueue(); }), HasSubstr("of poll"));
    EXPECT_EQ(bucketer.stats().inputs, 2);
    EXPECT_THAT(fault_of([&] { static_cast<void>(second.wait()); }), HasSubstr("interrupted"));
    EXPECT_THAT(fault_of([&] { bucketer.flush(); }), HasSubstr("interrupted"));
    bucketer.teardown();
  });
}

TEST(Bucketer, AcceptsARetryAfterRunningOutOfMemory) {
  const auto body = [](const Handle& engine) {
    const bool is_short = engine->info().rank == 0;
    Bucketer bucketer({.timeout = std::chrono::seconds(is_short ? 4 : 30)});
    if (is_short) {
      std::vector<Block> held;
      while (auto block = engine->try_allocate(4096)) held.push_back(std::move(*block));
      EXPECT_THAT(fault_of([&] { bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum); }),
                  HasSubstr("Timeout"));
      bucketer.flush();
      EXPECT_EQ(bucketer.stats().inputs, 0);
    }
    const auto handle = bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum);
    agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
    bucketer.flush();
    expect_sum(*engine, 0, 40, handle.wait());
    EXPECT_EQ(bucketer.stats().buckets, 1);
  };
  inproc::run_ranks(2, body, {.memory_bytes = std::size_t{16} << 20});
}

TEST(Bucketer, ForgetsAGroupThatCouldNotBeOpened) {
  const auto engine = inproc::make_group(1).front();
  engine->abort("the test ends it");
  Bucketer bucketer;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(fault_of([&] { bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum); }),
                HasSubstr("the test ends it"));
  }
  bucketer.flush();
  bucketer.teardown();
}

TEST(Bucketer, CopiesMemoryOfAnotherGroup) {
  for (const bool is_known : {false, true}) {
    inproc::run_ranks(4, [is_known](const Handle& engine) {
      const int first = engine->info().rank / 2 * 2;
      const auto pair = engine->subgroup(std::vector{first, first + 1}, "pair");
      Bucketer bucketer;
      if (is_known) bucketer.reduce_scatter(pair, input(*pair, 0, 40), ReduceOp::sum);
      const Tensor placed = input(*pair, 1, 131'072, bucketer.empty(engine, dtypes::float32, {262'144}));
      const auto handle = bucketer.reduce_scatter(pair, placed, ReduceOp::sum);
      bucketer.flush();
      expect_sum(*pair, 1, 131'072, handle.wait());
      agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
    });
  }
}

TEST(Bucketer, CopiesItsOwnMemoryIfAnotherShapeNeedsPadding) {
  inproc::run_ranks(4, [](const Handle& engine) {
    Bucketer bucketer;
    const Tensor placed = input(*engine, 0, 49'152, bucketer.empty(engine, dtypes::float32, {4 * 49'152}));
    const Tensor six_rows(TensorView(dtypes::float32, {6, 32'768}, placed.view().data()), placed.owner());
    const Tensor copy = input(*engine, 0, 49'152);
    const TensorView ordinary(dtypes::float32, {6, 32'768}, copy.view().data());
    const auto handle = bucketer.reduce_scatter(engine, six_rows, ReduceOp::sum);
    const auto expected = bucketer.reduce_scatter(engine, Tensor(ordinary, copy.owner()), ReduceOp::sum);
    bucketer.flush();
    const auto values = handle.wait(), same = expected.wait();
    EXPECT_EQ(values.shape(), Shape({2, 32'768}));
    EXPECT_TRUE(std::ranges::equal(values.as<float>(), same.as<float>()));
  });
}

TEST(Bucketer, UsesItsOwnMemoryInAnyShapeOnAnyRank) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    Tensor whole = input(*engine, 0, 131'072);
    if (engine->info().rank == 0) {
      whole = input(*engine, 0, 131'072, bucketer.empty(engine, dtypes::float32, {262'144}));
    }
    const Tensor square(TensorView(dtypes::float32, {512, 512}, whole.view().data()), whole.owner());
    whole = {};
    const auto handle = bucketer.reduce_scatter(engine, square, ReduceOp::sum);
    bucketer.flush();
    const Tensor result = handle.wait();
    EXPECT_EQ(result.shape(), Shape({256, 512}));
    expect_sum(*engine, 0, 131'072, result);
    EXPECT_EQ(bucketer.stats().bytes_copied, engine->info().rank == 0 ? 0 : bucketer.stats().bytes);
  });
}

TEST(Bucketer, ReusesItsMemoryWithoutCopying) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    Tensor tensor;
    for (int n = 0; n < 6; ++n) {
      tensor = input(*engine, n, 65'536, bucketer.empty(engine, dtypes::float32, {2 * 65'536}));
      const auto handle = bucketer.reduce_scatter(engine, tensor, ReduceOp::sum);
      bucketer.flush();
      expect_sum(*engine, n, 65'536, handle.wait());
    }
    EXPECT_EQ(bucketer.stats().bytes_copied, 0);
  });
}

TEST(Bucketer, ReturnsResultsOnAnyThread) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    for (int n = 0; n < 100; ++n) {
      const auto handle = bucketer.reduce_scatter(engine, input(*engine, n, 40), ReduceOp::sum);
      std::thread asking([&, handle] {
        while (!handle.done()) std::this_thread::yield();
        expect_sum(*engine, n, 40, handle.get());
      });
      bucketer.flush();
      asking.join();
    }
  });
}

TEST(Bucketer, DestructionFailsPendingInputs) {
  inproc::run_ranks(2, [](const Handle& engine) {
    std::optional<Bucketer::Handle> handle;
    {
      Bucketer bucketer;
      handle = bucketer.reduce_scatter(engine, input(*engine, 0, 40), ReduceOp::sum);
    }
    EXPECT_THAT(fault_of([&] { static_cast<void>(handle->wait()); }),
                HasSubstr("EngineError: the Bucketer was destroyed"));
  });
}

}  // namespace
}  // namespace levada
