// Exchanges in which ranks do not do the same.
#include <gmock/gmock.h>

#include <future>
#include <new>
#include <thread>

#include "levada/engine/collect.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

TEST(Exchange, EndsTheGroupWhereOneRankAloneThrows) {
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

TEST(Exchange, RefusesOtherCallsAndOtherStoresOnOtherRanks) {
  const ExchangeRequest request{{{{0}, {"a"}}}, {"tokens"}};
  const std::string all_alike =
      "; all ranks must call the same with the same store, and may give stores that belong together one name";
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        SampleStore one({.name = "store 1"}), two({.name = "store 2"});
                        Exchange(engine).all_gather(engine->info().rank == 2 ? two : one);
                      }),
             "rank 0 calls all_gather() with store 1, rank 2 all_gather() with store 2" + all_alike);
  expect_all(refusals(2,
                      [&](const auto& engine) {
                        SampleStore store({.name = "rollouts"});
                        Exchange exchange(engine);
                        if (engine->info().rank == 0) exchange.all_gather(store);
                        else exchange.redistribute(store, request);
                      }),
             "rank 0 calls all_gather() with rollouts, rank 1 redistribute() with rollouts" + all_alike);
}

TEST(Exchange, EndsTheGroupWhereARankIsInAnotherCollectiveCall) {
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
                                  ", but rank 1 in another collective call"));
    }
  }
}

TEST(Exchange, RefusesTheCallOfAnotherThreadMeanwhile) {
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

}  // namespace
}  // namespace levada
