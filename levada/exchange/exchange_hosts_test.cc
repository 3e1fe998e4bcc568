// Exchanges between ranks on several hosts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

TEST(ExchangeBetweenHosts, DeliversTheSamplesBitForBit) {
  const auto keys = made_samples({}).keys();
  const Redistribution cases[] = {
      {model("dp=6"), model("dp=3,tp=2"), numbered_ids(24), keys},
      {model("pp=2,dp=3"), model("dp=6"), numbered_ids(24), keys},
      {model("dp=2"), model("dp=1,tp=3", 3), numbered_ids(24), keys},
      {model("tp=6"), model("pp=3,tp=2"), {}, {}},
  };
  for (const int ranks_a_host : {1, 2, 3}) {
    for (const std::uint64_t chunk : {std::uint64_t{7}, std::uint64_t{4} << 20}) {
      const auto body = [&](const std::shared_ptr<Engine>& engine, joined::test::Job&) {
        for (const Redistribution& what : cases) {
          const auto fault = check_redistribution(engine, what, {.chunk_bytes = chunk});
          if (!fault.empty()) throw EngineError(fault);
        }
      };
      EXPECT_EQ(joined::test::run_ranks(6, {.ranks_a_host = ranks_a_host}, body), "") << ranks_a_host << " a host";
    }
  }
}

/// Returns one sample of `bytes` tokens, a byte each.
SampleBatch sample(const std::string& id, std::int64_t bytes) {
  SampleBatch batch({id});
  Tensor tokens = Tensor::empty(dtypes::uint8, {bytes});
  std::ranges::fill(tokens.mutable_bytes(), static_cast<std::byte>(hash64(as_bytes(id))));
  batch.set("tokens", tokens, Seqlens::one_each({bytes}));
  return batch;
}

/// Returns the MiB that an exchange of 1 MiB samples sends between hosts. `holders`: by sample.
std::uint64_t crossed_mib(int ranks, int ranks_a_host, const std::vector<std::vector<int>>& holders,
                          const std::vector<int>& receivers) {
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  std::uint64_t crossed = 0;
  const auto body = [&](const std::shared_ptr<Engine>& engine, joined::test::Job& job) {
    const int rank = engine->info().rank;
    SampleStore store;
    const auto ids = numbered_ids(static_cast<int>(holders.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (std::ranges::count(holders[i], rank) > 0) store.store(sample(ids[i], mib));
    }
    const auto together = [&] { agree(*engine, {}, Deadline::after(std::chrono::seconds(20)), "test"); };
    together();
    if (rank == 0) crossed = job.network.crossed_bytes();
    together();
    Exchange(engine).redistribute(store, {{{receivers, ids}}, {"tokens"}});
    together();
    if (rank == 0) crossed = job.network.crossed_bytes() - crossed;
    together();
    const bool wants = std::ranges::count(receivers, rank) > 0;
    for (const std::string& id : ids) {
      if (wants && store.get(std::vector{id}) != sample(id, mib)) throw EngineError("other bits");
    }
  };
  EXPECT_EQ(joined::test::run_ranks(ranks, {.ranks_a_host = ranks_a_host}, body), "");
  const std::uint64_t whole = crossed / mib;
  EXPECT_LT(crossed - whole * mib, 100'000u) << "control messages are small";
  return whole;
}

TEST(ExchangeBetweenHosts, SendsASampleToEachHostOnlyOnce) {
  EXPECT_EQ(crossed_mib(4, 2, {{0}}, {2, 3}), 1u);
  EXPECT_EQ(crossed_mib(4, 2, {{0}}, {0, 1, 2, 3}), 1u);
  EXPECT_EQ(crossed_mib(6, 2, {{0}, {3}}, {0, 1, 2, 3, 4, 5}), 4u);
  EXPECT_EQ(crossed_mib(6, 3, {{1}, {2}, {4}}, {0, 1, 2, 3, 4, 5}), 3u);
  EXPECT_EQ(crossed_mib(3, 1, {{1}}, {0, 1, 2}), 2u);
}

TEST(ExchangeBetweenHosts, SendsNothingToAHostThatHasTheSample) {
  EXPECT_EQ(crossed_mib(4, 2, {{0, 2}}, {1, 3}), 0u);
  EXPECT_EQ(crossed_mib(4, 2, {{0, 2}}, {0, 1, 2, 3}), 0u);
  EXPECT_EQ(crossed_mib(6, 2, {{0, 2}}, {1, 3, 4, 5}), 1u);
}

}  // namespace
}  // namespace levada
