// Repeated exchanges.
#include <gmock/gmock.h>

#include <random>

#include "levada/base/copy.h"
#include "levada/engine/collect.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

constexpr std::uint64_t short_message = 128;  // has nothing about single samples

/// All samples are dealt to the ranks, and every rank requests all of them.
struct Repeated {
  explicit Repeated(std::shared_ptr<Engine> of) : engine(std::move(of)), exchange(engine) {
    const int ranks = engine->info().size;
    ExchangeRequest asked{{{{}, ids}}, {"tokens", "mask"}};
    for (int rank = 0; rank < ranks; ++rank) asked.destinations[0].ranks.push_back(rank);
    request = asked;
    own = dealt(ids, ranks)[static_cast<std::size_t>(engine->info().rank)];
    store.store(made_samples(own));
  }
  ExchangeResult run() {
    const ExchangeResult result = exchange.redistribute(store, request);
    EXPECT_EQ(store.get(ids, request.keys), made_samples(ids, {request.keys.begin(), request.keys.end()}));
    return result;
  }
  void drop_received() {
    std::vector<std::string> received;
    for (const std::string& id : ids) {
      if (std::ranges::find(own, id) == own.end()) received.push_back(id);
    }
    store.remove(received);
  }

  std::vector<std::string> ids = numbered_ids(40);
  std::vector<std::string> own;
  std::shared_ptr<Engine> engine;
  Exchange exchange;
  ExchangeRequest request;
  SampleStore store;
};

TEST(RepeatedExchange, ReportsNothingIfHoldingsAreUnchanged) {
  inproc::run_ranks(3, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    const ExchangeResult first = repeated.run();
    EXPECT_GT(first.agreed_bytes, short_message);
    for (int round = 0; round < 3; ++round) {
      repeated.drop_received();
      const ExchangeResult again = repeated.run();
      EXPECT_LT(again.agreed_bytes, short_message);
      EXPECT_EQ(again.multicasts, first.multicasts);
      EXPECT_EQ(again.moved_bytes, first.moved_bytes);
      EXPECT_EQ(again.lower_bound_bytes, first.lower_bound_bytes);
      EXPECT_EQ(again.delivered_bytes, first.delivered_bytes);
      EXPECT_EQ(again.received_bytes, first.received_bytes);
    }
    EXPECT_EQ(repeated.run().moved_bytes, 0u);  // all ranks have all samples
    const ExchangeResult idle = repeated.run();
    EXPECT_EQ(idle.moved_bytes, 0u);
    EXPECT_LT(idle.agreed_bytes, short_message);
  });
}

TEST(RepeatedExchange, MovesSamplesThatHaveChanged) {
  inproc::run_ranks(3, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    repeated.run();
    repeated.drop_received();
    SampleBatch longer({repeated.ids[0]});  // held only by rank 0
    longer.set_values(0, {{"from", repeated.ids[0]}});
    longer.set("mask", Tensor::zeros(dtypes::boolean, {50}), Seqlens::one_each({50}));
    if (engine->info().rank == 0) repeated.store.update(longer);
    const ExchangeResult result = repeated.exchange.redistribute(repeated.store, repeated.request);
    EXPECT_EQ(result.agreed_bytes > short_message, engine->info().rank == 0);
    EXPECT_EQ(repeated.store.get(longer.ids(), longer.keys()), longer);
    const std::vector<std::string> others(repeated.ids.begin() + 1, repeated.ids.end());
    EXPECT_EQ(repeated.store.get(others, repeated.request.keys), made_samples(others, {"tokens", "mask"}));
  });
}

TEST(RepeatedExchange, SendsTheCurrentBytes) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    for (int round = 0; round < 3; ++round) {
      SampleBatch other = made_samples(repeated.own, {"tokens"});
      Tensor tokens = Tensor::zeros(dtypes::int64, {40});
      std::fill_n(tokens.mutable_bytes().data(), 320, static_cast<std::byte>(round + 1));
      other = SampleBatch({repeated.own[0]});
      other.set("tokens", tokens, Seqlens::one_each({40}));
      repeated.store.update(other);
      const ExchangeResult result = repeated.exchange.redistribute(repeated.store, repeated.request);
      EXPECT_GT(result.agreed_bytes, short_message) << "different contents of the same lengths";
      for (const std::string& id : {repeated.ids[0], repeated.ids[1]}) {
        const std::vector<std::string> one{id};
        EXPECT_EQ(repeated.store.get(one, other.keys()).packed("tokens").bytes()[7], static_cast<std::byte>(round + 1));
      }
      repeated.drop_received();
    }
  });
}

TEST(RepeatedExchange, ForgetsAFailedRound) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    repeated.run();
    repeated.drop_received();
    ExchangeRequest refused = repeated.request;
    refused.destinations[0].ids.push_back("of nobody");
    EXPECT_THAT(refusal([&] { repeated.exchange.redistribute(repeated.store, refused); }),
                testing::HasSubstr("sample of nobody"));
    EXPECT_GT(repeated.run().agreed_bytes, short_message);
    repeated.drop_received();
    EXPECT_LT(repeated.run().agreed_bytes, short_message);
  });
}

TEST(RepeatedExchange, ForgetsItsRoundOnAllRanksIfTheyCallDifferentFunctions) {
  for (const int gathers : {0, 1}) {
    inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
      Repeated repeated(engine);
      repeated.run();
      repeated.drop_received();
      EXPECT_EQ(repeated.exchange.all_gather(repeated.store).size(), repeated.ids.size());
      EXPECT_LT(repeated.run().agreed_bytes, short_message);
      repeated.drop_received();
      const std::string refused = refusal([&] {
        if (engine->info().rank == gathers) repeated.exchange.all_gather(repeated.store);
        else repeated.exchange.redistribute(repeated.store, repeated.request);
      });
      EXPECT_THAT(refused, testing::HasSubstr("all ranks must make the same call"));
      EXPECT_GT(repeated.run().agreed_bytes, short_message);
      repeated.drop_received();
      EXPECT_LT(repeated.run().agreed_bytes, short_message);
    });
  }
}

TEST(RepeatedExchange, DoesNotCacheLargeHoldings) {
  const std::string text(65 << 20, 'a');
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    if (engine->info().rank == 0) {
      SampleBatch valued({repeated.own[0]});
      valued.set_values(0, {{"text", text}});
      repeated.store.update(valued);
    }
    for (int round = 0; round < 2; ++round) {
      const ExchangeResult result = repeated.exchange.redistribute(repeated.store, repeated.request);
      EXPECT_GT(result.agreed_bytes, short_message);
      EXPECT_GT(result.moved_bytes, 0u);
      repeated.drop_received();
    }
  });
}

TEST(RepeatedExchange, DistinguishesRequests) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    repeated.run();
    repeated.drop_received();
    repeated.request.keys = {"tokens"};
    EXPECT_GT(repeated.run().agreed_bytes, short_message);
    repeated.request.keys = {"tokens", "mask"};
    repeated.request.allow_absent = true;
    EXPECT_GT(repeated.run().moved_bytes, 0u);  // the masks
    repeated.drop_received();
    repeated.request.cut_keys = {"mask"};
    EXPECT_GT(repeated.run().agreed_bytes, short_message);
  });
}

TEST(RepeatedExchange, RejectsSamplesThatExceedAStoresBound) {
  inproc::run_ranks(2, [](const std::shared_ptr<Engine>& engine) {
    Repeated repeated(engine);
    SampleStore bounded({.max_bytes = 1 << 16});
    bounded.store(made_samples(repeated.own));
    const auto run = [&] { repeated.exchange.redistribute(bounded, repeated.request); };
    run();
    std::vector<std::string> received;
    std::ranges::set_difference(bounded.ids(), repeated.store.ids(), std::back_inserter(received));
    bounded.remove(received);
    if (engine->info().rank == 1) {
      SampleBatch filler({"filler"});
      const auto left = static_cast<std::int64_t>(bounded.max_bytes() - bounded.bytes());
      filler.set("filler", Tensor::zeros(dtypes::uint8, {left}), Seqlens::one_each({left}));
      bounded.store(filler);
    }
    EXPECT_THAT(refusal(run), testing::HasSubstr("rank 1 is to receive"));
  });
}

/// A round of a reused Exchange ends as the first one of a new Exchange would, whatever ranks store and remove.
TEST(RepeatedExchange, DeliversTheSameAsAFirstExchange) {
  constexpr int ranks = 4;
  inproc::run_ranks(ranks, [](const std::shared_ptr<Engine>& engine) {
    const auto rank = static_cast<std::uint64_t>(engine->info().rank);
    const std::vector<std::string> ids = numbered_ids(24);
    const SampleBatch all = made_samples(ids);
    Exchange exchange(engine);
    SampleStore store;
    std::mt19937_64 own(rank + 1), shared(0);
    ExchangeRequest request{{}, {"tokens", "hidden", "mask"}};
    for (int round = 0; round < 60; ++round) {
      if (round % 5 == 0) {
        request.destinations.clear();
        for (int to = 0; to < ranks; ++to) {
          Destination destination{{to}, {}};
          for (const std::string& id : ids) {
            if (shared() % 3 == 0) destination.ids.push_back(id);
          }
          request.destinations.push_back(destination);
        }
      }
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::vector<std::string> one{ids[i]};
        const bool is_mine = i % ranks == rank;  // so that some rank has it
        if (!is_mine && own() % 4 == 0) store.remove(one);
        if (is_mine && !store.has(ids[i])) store.store(all.select_ids(one));
        else if (is_mine && own() % 8 == 0) store.update(all.select_ids(one));
      }
      const auto result = exchange.redistribute(store, request);
      EXPECT_EQ(result.moved_bytes, result.lower_bound_bytes);
      const auto& wanted = request.destinations[rank].ids;
      if (!wanted.empty()) {
        EXPECT_EQ(store.get(wanted, request.keys), made_samples(wanted, {"tokens", "hidden", "mask"}));
      }
    }
  });
}

}  // namespace
}  // namespace levada
