#include "levada/exchange/exchange_streams.h"

#include <gmock/gmock.h>

#include <thread>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/exchange/exchange.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

TEST(IncomingRow, KeepsToTheBoundOfAStoreThatAnotherThreadFillsMeanwhile) {
  const SampleBatch coming = made_samples(numbered_ids(40), {"tokens"});
  const auto half = static_cast<std::int64_t>(coming.byte_count() / 2);
  SampleBatch filler({"filler"});
  filler.set("filler", Tensor::zeros(dtypes::uint8, {half}), Seqlens::one_each({half}));
  SampleStore sender, receiver({.max_bytes = coming.byte_count()});
  sender.store(coming);
  std::string texts[2];
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    if (rank == 0) {  // when the receiver has said how much room it has
      while (engine->status(1).waiting_for != 0) std::this_thread::yield();
      receiver.store(filler);
    }
    const ExchangeOptions options{.timeout = std::chrono::seconds(20), .chunk_bytes = 64};
    try {
      Exchange(engine).redistribute(rank == 0 ? sender : receiver, {{{{1}, coming.ids()}}, {"tokens"}}, options);
    } catch (const Error& error) {
      texts[rank] = error.what();
    }
  });
  EXPECT_THAT(texts[0],
              testing::AnyOf("", HasSubstr("rank 1 aborted: the store would hold")));  // or it was done by then
  EXPECT_THAT(texts[1], HasSubstr("the store would hold"));
  EXPECT_LE(receiver.bytes(), receiver.max_bytes());
  EXPECT_GT(receiver.size(), 1u);
  auto held = receiver.ids();
  std::erase(held, "filler");
  EXPECT_EQ(receiver.get(held), made_samples(held, {"tokens"}));
  EXPECT_EQ(receiver.get(filler.ids()), filler);
}

}  // namespace
}  // namespace levada
