// Reductions between ranks on several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "levada/base/fault_testing.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/reduce/bucketer.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Handle = std::shared_ptr<Engine>;
/// Each rank's results, concatenated.
using Results = std::vector<Bytes>;
using Body = std::function<Bytes(const Handle&)>;

Results on_one_host(int ranks, const Body& body) {
  Results results(static_cast<std::size_t>(ranks));
  inproc::run_ranks(ranks,
                    [&](const Handle& each) { results[static_cast<std::size_t>(each->info().rank)] = body(each); });
  return results;
}

Results on_hosts(int ranks, int ranks_a_host, const Body& body) {
  Results results(static_cast<std::size_t>(ranks));
  const auto run = [&](const Handle& each, joined::test::Job&) {
    results[static_cast<std::size_t>(each->info().rank)] = body(each);
  };
  EXPECT_EQ(joined::test::run_ranks(ranks, {.ranks_a_host = ranks_a_host}, run), "");
  return results;
}

/// Returns arbitrary bits for integers, and numbers whose sums are rounded for other types.
Tensor numbers(DType dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::empty(dtype, {count});
  if (dtype == dtypes::float32) {
    for (float& value : tensor.mutable_as<float>()) value = 1.0F / static_cast<float>(1 + random() % 10'000);
  } else if (dtype == dtypes::bfloat16) {
    const auto bytes = tensor.mutable_bytes();
    for (std::uint16_t& value : std::span(reinterpret_cast<std::uint16_t*>(bytes.data()), bytes.size() / 2)) {
      value =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(1.0F / static_cast<float>(1 + random() % 97)) >> 16);
    }
  } else {
    const auto bytes = tensor.mutable_bytes();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed += seed << 5 | 1);
  }
  return tensor;
}

/// Returns small whole numbers, whose sums are exact in every type.
Tensor whole_numbers(DType dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::empty(dtype, {count});
  if (dtype == dtypes::float32) {
    for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(random() % 16);
    return tensor;
  }
  const auto bytes = tensor.mutable_bytes();
  for (std::uint16_t& value : std::span(reinterpret_cast<std::uint16_t*>(bytes.data()), bytes.size() / 2)) {
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(random() % 16)) >> 16);
  }
  return tensor;
}

void append(Bytes& all, const Tensor& tensor) {
  all.insert(all.end(), tensor.bytes().begin(), tensor.bytes().end());
}

/// Returns the results of reduce-scatters of many sizes, some in memory from empty(), and an all-reduce.
Bytes reduced(const Handle& engine, DType dtype, ReduceOp op, Tensor (*make)(DType, std::int64_t, unsigned)) {
  const auto [rank, ranks] = std::pair(engine->info().rank, engine->info().size);
  Bucketer bucketer({.capacity = 1 << 20});
  Bytes all;
  const auto collect = [&](const Tensor& result) { append(all, result); };
  unsigned seed = static_cast<unsigned>(rank);
  for (const std::int64_t count : {1, 0, 300, 20'000, 7, 100'000}) {
    const Tensor given = make(dtype, count * ranks, seed += 100);
    bucketer.reduce_scatter(engine, given, op, collect);
    Tensor placed = bucketer.empty(engine, dtype, given.shape());
    copy_elements(given, placed.mutable_bytes().data());
    bucketer.reduce_scatter(engine, placed, op, collect);
  }
  bucketer.flush();
  append(all, bucketer.all_reduce(engine, make(dtype, 1001, seed), op).wait());
  append(all, bucketer.all_gather(engine, make(dtype, 11, seed)).wait());
  return all;
}

TEST(BucketerBetweenHosts, IntegerSumsHaveTheSameBitsAsOnOneHost) {
  for (const DType dtype : {dtypes::int64, dtypes::uint8, dtypes::int16}) {
    const Body body = [&](const Handle& engine) { return reduced(engine, dtype, ReduceOp::sum, numbers); };
    const Results expected = on_one_host(6, body);
    for (const int ranks_a_host : {1, 2, 3, 4}) {
      EXPECT_EQ(on_hosts(6, ranks_a_host, body), expected) << ranks_a_host << " a host, " << dtype.name();
    }
  }
}

TEST(BucketerBetweenHosts, ExactSumsHaveTheSameBitsAsOnOneHost) {
  for (const DType dtype : {dtypes::float32, dtypes::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
      const Body body = [&](const Handle& engine) { return reduced(engine, dtype, op, whole_numbers); };
      const Results expected = on_one_host(5, body);
      for (const int ranks_a_host : {1, 2, 3, 4}) {
        EXPECT_EQ(on_hosts(5, ranks_a_host, body), expected) << ranks_a_host << " a host, " << dtype.name();
      }
    }
  }
}

TEST(BucketerBetweenHosts, SumsHaveTheSameBitsAsOnOneHostIfOnlyTheFirstHostHasSeveralRanks) {
  for (const DType dtype : {dtypes::float32, dtypes::bfloat16}) {
    const Body body = [&](const Handle& engine) { return reduced(engine, dtype, ReduceOp::average, numbers); };
    EXPECT_EQ(on_hosts(4, 3, body), on_one_host(4, body)) << dtype.name();
    EXPECT_EQ(on_hosts(4, 1, body), on_one_host(4, body)) << dtype.name();
  }
}

TEST(BucketerBetweenHosts, AddsTheRanksOfEachHostInOrderThenTheHosts) {
  // Any other order rounds differently: 2^24 + 1 + 1 is 2^24, but 2^24 + (1 + 1) is not.
  const std::vector<float> given{16'777'216, 1, 1, 1, -16'777'216, 1};
  const auto sum = [&](int ranks_a_host) {
    std::vector<float> sums;
    for (std::size_t first = 0; first < given.size(); first += static_cast<std::size_t>(ranks_a_host)) {
      float host = given[first];
      for (std::size_t i = first + 1; i < first + static_cast<std::size_t>(ranks_a_host); ++i) host += given[i];
      sums.push_back(sums.empty() ? host : sums.back() + host);
    }
    return sums.back();
  };
  EXPECT_NE(sum(1), sum(2));
  for (const int ranks_a_host : {1, 2, 3}) {
    const auto body = [&](const Handle& engine, joined::test::Job&) {
      Bucketer bucketer;
      const float mine = given[static_cast<std::size_t>(engine->info().rank)];
      const Tensor all = Tensor::of<float>({6}, {mine, mine, mine, mine, mine, mine});
      EXPECT_EQ(bucketer.reduce_scatter(engine, all, ReduceOp::sum).wait().as<float>()[0], sum(ranks_a_host));
      agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
    };
    EXPECT_EQ(joined::test::run_ranks(6, {.ranks_a_host = ranks_a_host}, body), "");
  }
}

TEST(BucketerBetweenHosts, ReducesInGroupsWithRanksInAnyHostOrder) {
  const Body body = [](const Handle& engine) {
    Bytes all;
    for (const std::vector<int>& ranks : {std::vector{5, 0, 3, 1}, std::vector{4, 2}, std::vector{1, 0}}) {
      if (std::ranges::count(ranks, engine->info().rank) == 0) continue;
      const Handle group = engine->subgroup(ranks, "some");
      const Bytes some = reduced(group, dtypes::int64, ReduceOp::sum, numbers);
      all.insert(all.end(), some.begin(), some.end());
    }
    agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test");
    return all;
  };
  const Results expected = on_one_host(6, body);
  for (const int ranks_a_host : {1, 2, 3}) EXPECT_EQ(on_hosts(6, ranks_a_host, body), expected);
}

/// Returns the bytes that a reduce-scatter of `count` numbers per rank sends between hosts, without control messages.
std::uint64_t crossed_bytes(int ranks, int ranks_a_host, DType dtype, std::int64_t count, bool for_all) {
  std::uint64_t crossed = 0;
  const auto body = [&](const Handle& engine, joined::test::Job& job) {
    const auto together = [&] { agree(*engine, {}, Deadline::after(std::chrono::seconds(30)), "test"); };
    Bucketer bucketer({.capacity = std::int64_t{64} << 20});
    together();
    if (engine->info().rank == 0) crossed = job.network.crossed_bytes();
    together();
    const Tensor given = Tensor::zeros(dtype, {count * ranks});
    if (for_all) static_cast<void>(bucketer.all_reduce(engine, given, ReduceOp::sum).wait());
    else static_cast<void>(bucketer.reduce_scatter(engine, given, ReduceOp::sum).wait());
    together();
    if (engine->info().rank == 0) crossed = job.network.crossed_bytes() - crossed;
    together();
  };
  EXPECT_EQ(joined::test::run_ranks(ranks, {.ranks_a_host = ranks_a_host}, body), "");
  const std::uint64_t output = dtype.bytes(static_cast<std::size_t>(count));
  EXPECT_LT(crossed % output, output / 10) << "control messages are small";
  return crossed / output;
}

TEST(BucketerBetweenHosts, SendsEachRankOneSumPerOtherHost) {
  constexpr std::int64_t count = 1 << 18;
  EXPECT_EQ(crossed_bytes(4, 2, dtypes::float32, count, false), 4u);  // each rank receives 1 instead of 2
  EXPECT_EQ(crossed_bytes(6, 3, dtypes::int64, count, false), 6u);
  EXPECT_EQ(crossed_bytes(6, 2, dtypes::float32, count, false), 6u * 2);
  EXPECT_EQ(crossed_bytes(4, 3, dtypes::float32, count, false), 4u);
  EXPECT_EQ(crossed_bytes(3, 1, dtypes::float32, count, false), 3u * 2);
}

TEST(BucketerBetweenHosts, DoesNotRoundThe16BitSumsThatItSends) {
  constexpr std::int64_t count = 1 << 19;
  EXPECT_EQ(crossed_bytes(6, 3, dtypes::bfloat16, count, false), 6u * 2);
  EXPECT_EQ(crossed_bytes(3, 1, dtypes::bfloat16, count, false), 3u * 2);  // the inputs of a single rank are not sums
  EXPECT_EQ(crossed_bytes(4, 3, dtypes::bfloat16, count, false), 3u + 2);
}

TEST(BucketerBetweenHosts, SendsEachRanksSumToEachOtherHostOnce) {
  constexpr std::int64_t count = 1 << 18;
  EXPECT_EQ(crossed_bytes(4, 2, dtypes::float32, count, true), 4u + 4);
  EXPECT_EQ(crossed_bytes(6, 2, dtypes::float32, count, true), 12u + 12);
}

TEST(BucketerBetweenHosts, NamesEachRanksCallAndContinues) {
  using Call = Bucketer::Handle (*)(Bucketer&, const Handle&);
  const Call gather = [](Bucketer& bucketer, const Handle& engine) {
    return bucketer.all_gather(engine, Tensor::zeros(dtypes::float32, {6}));
  };
  const Call scatter = [](Bucketer& bucketer, const Handle& engine) {
    return bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {600}), ReduceOp::sum);
  };
  const Call larger = [](Bucketer& bucketer, const Handle& engine) {
    return bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {1200}), ReduceOp::sum);
  };
  const std::vector<std::vector<Call>> cases = {
      {gather, scatter, scatter, scatter}, {scatter, scatter, gather, scatter}, {scatter, scatter, larger, larger},
      {gather, gather, scatter, scatter},  {scatter, scatter, scatter, larger}, {larger, gather, gather, larger}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const int ranks_a_host : {1, 2, 3}) {
      std::vector<std::string> faults(4);
      const auto body = [&](const Handle& engine, joined::test::Job&) {
        const auto rank = static_cast<std::size_t>(engine->info().rank);
        Bucketer bucketer({.timeout = std::chrono::seconds(20)});
        for (int often = 0; often < 70; ++often) {  // more often than there is room for unused messages
          faults[rank] = fault_of([&] { static_cast<void>(cases[i][rank](bucketer, engine).wait()); });
          static_cast<void>(fault_of([&] { bucketer.flush(); }));
        }
        for (const Call same : {scatter, gather, larger}) static_cast<void>(same(bucketer, engine).wait());
      };
      EXPECT_EQ(joined::test::run_ranks(4, {.ranks_a_host = ranks_a_host}, body), "") << "case " << i;
      EXPECT_THAT(faults, Each(HasSubstr("InvalidArgument: ranks disagree about "))) << "case " << i;
      EXPECT_THAT(faults, Each(faults[0]));
    }
  }
}

TEST(BucketerBetweenHosts, NamesALostRank) {
  for (const int victim : {0, 1, 3}) {
    const auto body = [&](const Handle& engine, joined::test::Job& job) {
      Bucketer bucketer({.timeout = std::chrono::seconds(20)});
      try {
        for (int n = 0;; ++n) {
          if (engine->info().rank == victim && n == 3) return job.lose(victim);
          bucketer.reduce_scatter(engine, Tensor::zeros(dtypes::float32, {4000}), ReduceOp::sum);
          bucketer.flush();
        }
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), victim);
      }
    };
    EXPECT_EQ(joined::test::run_ranks(4, {}, body), "");
  }
}

}  // namespace
}  // namespace levada
