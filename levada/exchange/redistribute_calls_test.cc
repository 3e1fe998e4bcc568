// Exchanges in which ranks do not do the same.
#include <gmock/gmock.h>

#include <future>
#include <new>

#include "levada/engine/collect.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

TEST(Redistribute, EndsTheGroupWhereOneRankAloneThrows) {
  std::promise<void> thrown;
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    const ExchangeRequest request{{{{0, 1}, {"a"}}}, {"tokens"}};
    if (engine->info().rank == 0) {
      const ExchangeOptions options{.poll = [] { throw std::bad_alloc(); }};
      EXPECT_THROW(redistribute(engine, store, request, options), std::bad_alloc);
      return thrown.set_value();
    }
    thrown.get_future().wait();
    EXPECT_THAT(refusal<EngineError>([&] { redistribute(engine, store, request); }),
                HasSubstr("rank 0 aborted: an exchange failed: std::bad_alloc"));
  });
}

TEST(Redistribute, RefusesOtherCallsAndOtherStoresOnOtherRanks) {
  const ExchangeRequest request{{{{0}, {"a"}}}, {"tokens"}};
  const std::string all_alike =
      "; all ranks must call the same with the same store, and may give stores that belong together one name";
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        SampleStore one({.name = "store 1"}), two({.name = "store 2"});
                        gather_ownership(engine, engine->info().rank == 2 ? two : one);
                      }),
             "rank 0 calls agree() with store 1, rank 2 agree() with store 2" + all_alike);
  expect_all(refusals(2,
                      [&](const auto& engine) {
                        SampleStore store({.name = "rollouts"});
                        if (engine->info().rank == 0) gather_ownership(engine, store);
                        else redistribute(engine, store, request);
                      }),
             "rank 0 calls agree() with rollouts, rank 1 redistribute() with rollouts" + all_alike);
  EXPECT_THAT(refusals(2,
                       [&](const auto& engine) {
                         SampleStore store;
                         if (engine->info().rank == 1) redistribute(engine, store, request);
                         else agree(*engine, as_bytes("of a feed"), Deadline::after(std::chrono::minutes(1)), "start");
                       })[1],
              "rank 0 calls something that is no exchange, rank 1 redistribute()" + all_alike);
}

}  // namespace
}  // namespace levada
