// Exchanges in which ranks make different calls.
#include <gmock/gmock.h>

#include <future>
#include <new>
#include <optional>
#include <string_view>
#include <thread>

#include "levada/engine/collect.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

TEST(Exchange, EndsTheGroupIfOnlyOneRankThrows) {
  std::promise<void> thrown;
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    const ExchangeRequest request{{{{0, 1}, {"a"}}}, {"tokens"}};
    if (engine->info().rank == 0) {
      const ExchangeOptions options{.poll = [] { throw std::bad_alloc(); }};
      EXPECT_THROW(Exchange(engine).redistribute(store, request, options), std::bad_alloc);
      return thrown.set_value();
    }
    thrown.get_future().wait();
    EXPECT_THAT(refusal<EngineError>([&] { Exchange(engine).redistribute(store, request); }),
                HasSubstr("rank 0 aborted: an exchange failed: std::bad_alloc"));
  });
}

TEST(Exchange, RejectsDifferentCallsAndDifferentStores) {
  const ExchangeRequest request{{{{0}, {"a"}}}, {"tokens"}};
  const std::string all_alike =
      "; all ranks must make the same call with the same store; give corresponding stores the same name";
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        SampleStore one({.name = "store 1"}), two({.name = "store 2"});
                        Exchange(engine).all_gather(engine->info().rank == 2 ? two : one);
                      }),
             "rank 0 calls all_gather() with store 1, but rank 2 calls all_gather() with store 2" + all_alike);
  expect_all(refusals(2,
                      [&](const auto& engine) {
                        SampleStore store({.name = "rollouts"});
                        Exchange exchange(engine);
                        if (engine->info().rank == 0) exchange.all_gather(store);
                        else exchange.redistribute(store, request);
                      }),
             "rank 0 calls all_gather() with rollouts, but rank 1 calls redistribute() with rollouts" + all_alike);
}

TEST(Exchange, EndsTheGroupIfARankMakesAnotherCollectiveCall) {
  const ExchangeRequest request{{{{0}, {"a"}}}, {"tokens"}};
  for (const int in_exchange : {0, 1}) {
    std::string texts[2];
    EXPECT_THROW(inproc::run_ranks(2,
                                   [&](const std::shared_ptr<Engine>& engine) {
                                     const int rank = engine->info().rank;
                                     const auto limit = Deadline::after(std::chrono::minutes(1));
                                     SampleStore store;
                                     texts[rank] = refusal([&] {
                                       if (rank == in_exchange) Exchange(engine).redistribute(store, request);
                                       else agree(*engine, as_bytes("of a feed"), limit, "start");
                                     });
                                     throw EngineError("end");
                                   }),
                 Error);
    const std::string root = in_exchange == 0 ? "an exchange" : "start";
    for (const std::string& text : texts) {
      EXPECT_THAT(text, HasSubstr("rank 0 differs from the others: it is in " + root +
                                  ", but rank 1 is in another collective call"));
    }
  }
}

TEST(Exchange, FailsOnAllRanksIfOneHasLeftBeforeTheCall) {
  for (const std::size_t left : {0u, 2u}) {
    auto engines = inproc::make_group(4);
    std::vector<std::unique_ptr<Exchange>> exchanges;
    for (const auto& engine : engines) exchanges.push_back(std::make_unique<Exchange>(engine));
    exchanges[left].reset();
    engines[left].reset();
    const ExchangeRequest request{{{{0}, {}}}, {"tokens"}};
    std::vector<std::future<std::string>> errors;
    for (const auto& exchange : exchanges) {
      if (!exchange) continue;
      errors.push_back(std::async(std::launch::async, [&] {
        SampleStore store;
        const auto call = [&] { exchange->redistribute(store, request); };
        const auto first = refusal<PeerLost>(call);
        EXPECT_EQ(refusal<PeerLost>(call), first);
        return first;
      }));
    }
    for (auto& error : errors) {
      ASSERT_EQ(error.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      EXPECT_THAT(error.get(), HasSubstr("rank " + std::to_string(left) + " left before an exchange"));
    }
  }
}

TEST(Exchange, RejectsCallsWithDifferentNumbers) {
  const ExchangeRequest request{{{{0}, {}}}, {"tokens"}};
  expect_all(
      refusals(3,
               [&](const auto& engine) {
                 SampleStore store;
                 Exchange exchange(engine);
                 exchange.redistribute(store, request);
                 if (engine->info().rank == 2) exchange.skip();
                 exchange.redistribute(store, request);
               }),
      "rank 0 makes call 2 of this group's exchanges, but rank 2 makes call 3: an earlier call failed on only one of "
      "them; end both after such an error, or join a new group");
}

TEST(Exchange, RejectsOneRanksInvalidTimeoutOnAllRanks) {
  inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    Exchange exchange(engine);
    const ExchangeRequest request{{{{0}, {}}}, {"tokens"}};
    const ExchangeOptions options{.timeout = std::chrono::seconds(engine->info().rank == 1 ? -2 : 20)};
    const std::string expected = "rank 1: timeout must be positive, got -2 s";
    EXPECT_EQ(refusal([&] { exchange.redistribute(store, request, options); }), expected);
    EXPECT_EQ(refusal([&] { exchange.all_gather(store, options); }), expected);
    exchange.redistribute(store, request);
  });
}

TEST(Exchange, NamesThePartsOfARequestThatDifferBetweenRanks) {
  expect_all(refusals(2,
                      [&](const auto& engine) {
                        SampleStore store;
                        ExchangeRequest request{{{{0}, {}}}, {"tokens"}};
                        ExchangeOptions options;
                        if (engine->info().rank == 1) {
                          request.cut_keys = {"tokens"};
                          options.chunk_bytes = 7;
                        }
                        Exchange(engine).redistribute(store, request, options);
                      }),
             "ranks 0 and 1 pass different cut_keys and chunk_bytes; all ranks must request the same exchange");
}

TEST(Exchange, MovesStoresLargerThanTheEnginesMemory) {
  constexpr int ranks = 2;
  constexpr std::int64_t bytes = 300'000;
  inproc::run_ranks(ranks,
                    [&](const std::shared_ptr<Engine>& engine) {
                      const int rank = engine->info().rank;
                      Exchange exchange(engine);
                      SampleStore store;
                      const auto ids = numbered_ids(40);
                      const auto of_rank = [&](int from) {
                        SampleBatch made(dealt(ids, ranks)[static_cast<std::size_t>(from)]);
                        const auto count = static_cast<std::int64_t>(made.size());
                        Tensor tensor = Tensor::zeros(dtypes::uint8, {count * bytes});
                        std::ranges::fill(tensor.mutable_bytes(), static_cast<std::byte>(from + 1));
                        made.set("x", tensor, Seqlens::one_each(std::vector<std::int64_t>(made.size(), bytes)));
                        return made;
                      };
                      exchange.redistribute(store, {{{{0}, {}}}, {"x"}});
                      store.store(of_rank(rank));
                      exchange.redistribute(store, {{{{0, 1}, ids}}, {"x"}}, {.timeout = std::chrono::seconds(20)});
                      EXPECT_EQ(store.get(of_rank(1 - rank).ids()), of_rank(1 - rank));
                      EXPECT_GT(engine->memory_in_use(), 4u << 20);
                      EXPECT_TRUE(engine->try_allocate(7 << 20));
                    },
                    {.memory_bytes = 16 << 20});
}

TEST(Exchange, RejectsAConcurrentCallFromAnotherThread) {
  const ExchangeRequest request{{{{1}, {"a"}}}, {"tokens"}};
  std::promise<void> refused;
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    Exchange exchange(engine);
    SampleStore store;
    if (engine->info().rank == 1) {
      refused.get_future().wait();
      exchange.redistribute(store, request);
      EXPECT_EQ(store.get(request.destinations[0].ids), made_samples({"a"}, {"tokens"}));
      return;
    }
    store.store(made_samples({"a"}, {"tokens"}));
    std::jthread first([&] { exchange.redistribute(store, request); });
    while (engine->status(0).waiting_for != 1) std::this_thread::yield();
    EXPECT_THAT(refusal([&] { exchange.redistribute(store, request); }), HasSubstr("this exchange"));
    refused.set_value();
  });
}

TEST(Exchange, RestoresTheStatusAfterAWait) {
  SampleBatch sample({"a"});
  sample.set("tokens", Tensor::zeros(dtypes::uint8, {2 << 20}), Seqlens::one_each({2 << 20}));
  inproc::run_ranks(
      2,
      [&](const std::shared_ptr<Engine>& engine) {
        const int rank = engine->info().rank;
        SampleStore store;
        std::optional<Block> held;
        if (rank == 0) {
          store.store(sample);
          held = engine->try_allocate(7 << 20);  // leaves no room for a message
          ASSERT_TRUE(held);
        }
        engine->post(Status::make("computing", 7));
        const auto poll = [&] {
          if (std::string_view(engine->status(rank).operation.data()) == "exchange") held.reset();
        };
        Exchange(engine).redistribute(store, {{{{1}, {"a"}}}, {"tokens"}}, {.chunk_bytes = 1 << 20, .poll = poll});
        EXPECT_FALSE(held) << "rank 0 has waited";
        EXPECT_STREQ(engine->status(rank).operation.data(), "computing");
        EXPECT_EQ(engine->status(rank).step, 7);
      },
      {.memory_bytes = 8 << 20});
}

}  // namespace
}  // namespace levada
