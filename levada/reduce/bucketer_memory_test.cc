// Inputs in memory that Bucketer::empty() returns, and which of them are copied.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/p2p/in_process_transport_testing.h"
#include "levada/reduce/bucketer.h"

namespace levada {
namespace {

using Handle = std::shared_ptr<Engine>;

constexpr std::int64_t message_bytes = 4 << 20;

/// Returns input n of a rank, in memory from empty().
Tensor made(Bucketer& bucketer, const Handle& engine, int n, std::int64_t piece, DType dtype = dtypes::float32) {
  Tensor tensor = bucketer.empty(engine, dtype, {piece * engine->info().size});
  if (dtype == dtypes::float32) std::ranges::fill(tensor.mutable_as<float>(), static_cast<float>(n));
  else std::ranges::fill(tensor.mutable_as<std::int32_t>(), n);
  return tensor;
}

/// Returns whether the sum of all ranks' inputs n is right.
bool is_sum(const Handle& engine, int n, const Tensor& sum) {
  const int expected = n * engine->info().size;
  if (sum.dtype() == dtypes::int32) return std::ranges::count(sum.as<std::int32_t>(), expected) == sum.shape()[0];
  return std::ranges::count(sum.as<float>(), static_cast<float>(expected)) == sum.shape()[0];
}

/// Makes inputs of these sizes, enqueues them in this order, and returns how many bytes were copied.
std::uint64_t copied(const Handle& engine, std::int64_t capacity, const std::vector<std::int64_t>& pieces,
                     const std::vector<int>& order) {
  Bucketer bucketer({.capacity = capacity});
  std::uint64_t bytes = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<Tensor> tensors;
    std::vector<Bucketer::Handle> handles(pieces.size());
    for (std::size_t n = 0; n < pieces.size(); ++n) {
      tensors.push_back(made(bucketer, engine, static_cast<int>(n), pieces[n]));
    }
    for (const int n : order) {
      const auto at = static_cast<std::size_t>(n);
      handles[at] = bucketer.reduce_scatter(engine, tensors[at], ReduceOp::sum);
    }
    bucketer.flush();
    for (const int n : order) EXPECT_TRUE(is_sum(engine, n, handles[static_cast<std::size_t>(n)].wait())) << n;
    bytes = bucketer.stats().bytes_copied;
  }
  return bytes;
}

std::vector<int> ascending(std::size_t count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(BucketerMemory, IsNotCopiedForAnySizesOfInputsAndBuckets) {
  std::vector<std::int64_t> pieces;
  for (int n = 0; n < 200; ++n)
    pieces.push_back(std::vector{1, 0, 16, 300, 4096, 20'000}[static_cast<std::size_t>(n * n % 6)]);
  pieces.push_back(3 << 20);  // more than a message
  for (const std::int64_t capacity : {0LL, 100'000LL, 5LL << 20, 25LL << 20}) {
    inproc::run_ranks(3, [&](const Handle& engine) {
      EXPECT_EQ(copied(engine, capacity, pieces, ascending(pieces.size())), 0U) << capacity;
    });
  }
}

TEST(BucketerMemory, IsNotCopiedIfInputsAreMadeAndEnqueuedInTurn) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer({.capacity = 1 << 20});
    for (int n = 0; n < 300; ++n) {
      const DType dtype = n % 3 == 0 ? dtypes::int32 : dtypes::float32;
      const auto handle =
          bucketer.reduce_scatter(engine, made(bucketer, engine, n, 3000, dtype), ReduceOp::sum,
                                  [&engine, n](const Tensor& sum) { EXPECT_TRUE(is_sum(engine, n, sum)) << n; });
    }
    bucketer.flush();
    EXPECT_EQ(bucketer.stats().bytes_copied, 0U);
    EXPECT_EQ(bucketer.stats().inputs, 300);
  });
}

TEST(BucketerMemory, IsSharedBySmallInputs) {
  const Handle engine = inproc::make_group(1).front();
  Bucketer bucketer;
  std::vector<Tensor> tensors;
  for (int n = 0; n < 600; ++n) tensors.push_back(made(bucketer, engine, n, 64));
  constexpr std::size_t all_bytes = 600 * 64 * sizeof(float);
  EXPECT_LT(engine->memory_in_use(), 3 * all_bytes) << "slabs double in size, so they are at least half full";
  EXPECT_GE(engine->memory_in_use(), all_bytes);
}

TEST(BucketerMemory, GrowsWithItsInputs) {
  const Handle engine = inproc::make_group(1).front();
  Bucketer bucketer;
  std::vector<Handle> groups;
  const std::vector<int> ranks = {0};
  for (int n = 0; n < 100; ++n) {
    groups.push_back(engine->subgroup(ranks, "one of many"));
    static_cast<void>(bucketer.reduce_scatter(groups.back(), Tensor::zeros(dtypes::float32, {16}), ReduceOp::sum));
  }
  EXPECT_LT(engine->memory_in_use(), message_bytes) << "64 bytes each";
  bucketer.flush();
  for (int step = 0; step < 2; ++step) {
    for (int n = 0; n < 1000; ++n) {
      static_cast<void>(bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {1024}), ReduceOp::sum));
    }
    EXPECT_LT(engine->memory_in_use(), 3 * message_bytes) << "a bucket of 4 MB";
    bucketer.flush();
  }
}

TEST(BucketerMemory, IsReleasedByTeardownEvenIfNeverEnqueued) {
  const Handle engine = inproc::make_group(1).front();
  Bucketer bucketer;
  static_cast<void>(made(bucketer, engine, 1, 64));
  bucketer.teardown();
  EXPECT_EQ(engine->memory_in_use(), 0U);
}

TEST(BucketerMemory, IsCopiedIfInputsAreEnqueuedInAnotherOrder) {
  const std::vector<std::int64_t> pieces(50, 1000);
  std::vector<int> backwards = ascending(pieces.size());
  std::ranges::reverse(backwards);
  std::vector<int> shifted = ascending(pieces.size());
  std::rotate(shifted.begin(), shifted.begin() + 20, shifted.end());
  for (const auto& order : {backwards, shifted}) {
    inproc::run_ranks(2, [&](const Handle& engine) { EXPECT_GT(copied(engine, 1 << 20, pieces, order), 0U); });
  }
}

TEST(BucketerMemory, MayBeUsedInADifferentOrderOnEachRank) {
  const std::vector<std::int64_t> pieces(50, 1000);
  std::vector<int> backwards = ascending(pieces.size());
  std::ranges::reverse(backwards);
  const auto body = [&](const Handle& engine) {
    Bucketer bucketer({.capacity = 100'000});
    std::vector<Tensor> tensors;
    std::vector<Bucketer::Handle> handles;
    // Rank 0 makes them in the order of enqueueing, rank 1 in reverse order, and rank 2 makes only every other one.
    for (const int n : engine->info().rank == 1 ? backwards : ascending(pieces.size())) {
      tensors.push_back(made(bucketer, engine, n, 1000));
    }
    if (engine->info().rank == 1) std::ranges::reverse(tensors);
    for (int n = 0; n < 50; ++n) {
      Tensor& tensor = tensors[static_cast<std::size_t>(n)];
      if (engine->info().rank == 2 && n % 2 == 0) tensor = Tensor::copy_of(tensor);
      handles.push_back(bucketer.reduce_scatter(engine, tensor, ReduceOp::sum));
    }
    bucketer.flush();
    for (int n = 0; n < 50; ++n) EXPECT_TRUE(is_sum(engine, n, handles[static_cast<std::size_t>(n)].wait())) << n;
    agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
  };
  inproc::run_ranks(3, body);
  EXPECT_EQ(p2p::test::run_ranks(3, body), "");
}

TEST(BucketerMemory, OutlivesTheMessageOfItsSlabUntilEnqueued) {
  const auto body = [](const Handle& engine) {
    Bucketer bucketer;
    const Tensor first = made(bucketer, engine, 1, 1000);
    Tensor second = made(bucketer, engine, 2, 1000);
    for (int n = 3; n < 40; ++n) {
      // The first round sends the slab; the others use whatever memory is free.
      const auto sum = bucketer.reduce_scatter(engine, n == 3 ? first : made(bucketer, engine, n, 1000), ReduceOp::sum);
      bucketer.flush();
      EXPECT_TRUE(is_sum(engine, n == 3 ? 1 : n, sum.wait()));
    }
    const auto sum = bucketer.reduce_scatter(engine, second, ReduceOp::sum);
    second = {};
    bucketer.flush();
    EXPECT_TRUE(is_sum(engine, 2, sum.wait()));
    EXPECT_EQ(bucketer.stats().bytes_copied, bucketer.stats().bytes / 38);
  };
  inproc::run_ranks(2, body);
  EXPECT_EQ(p2p::test::run_ranks(2, body), "");
}

TEST(BucketerMemory, HoldsAllResultsOfABucketInOneBlock) {
  inproc::run_ranks(2, [](const Handle& engine) {
    Bucketer bucketer;
    std::vector<Bucketer::Handle> handles;
    for (int n = 0; n < 20; ++n)
      handles.push_back(bucketer.reduce_scatter(engine, made(bucketer, engine, n, 100), ReduceOp::sum));
    bucketer.flush();
    for (const auto& handle : handles) EXPECT_EQ(handle.wait().owner(), handles.front().wait().owner());
  });
}

}  // namespace
}  // namespace levada
