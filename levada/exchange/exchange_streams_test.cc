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

/// What rank 0 is to send of its store to rank 1.
struct Outgoing {
  ExchangeRequest request{{{{1}, {"sample-0", "sample-2"}}}, {"tokens", "mask"}};
  SampleIndex index{request.destinations};
  SampleStore store;
  Holdings holdings;
  ExchangeRows rows;

  Outgoing() {
    store.store(made_samples(numbered_ids(3)));
    holdings = holdings_of(store, index, request.keys);
    HoldingsTable table(index, request.keys);
    table.add(0, holdings.bytes);
    const auto requested = table.requested();
    const auto plan = plan_exchange(std::move(table).take(), request, requested, {});
    rows = decode_rows(encode_rows(plan, 2, true)[0], 0, 2, index.size());
  }
  Bytes sent() const {
    OutgoingStream stream(rows, rows.rows, index, holdings, SampleStore::Reading(store));
    Bytes bytes(stream.bytes_left());
    stream.read(bytes);
    return bytes;
  }
};

TEST(OutgoingStream, FindsSamplesAgainInAStoreThatHasChanged) {
  Outgoing outgoing;
  const Bytes before = outgoing.sent();
  EXPECT_FALSE(before.empty());
  outgoing.store.remove(numbered_ids(1, "sample-1"));  // of no such id
  outgoing.store.store(made_samples({"another"}));
  outgoing.store.remove(std::vector<std::string>{"sample-1"});  // so that another sample has its place
  EXPECT_EQ(outgoing.sent(), before);
}

TEST(OutgoingStream, RefusesAStoreThatNoLongerHasTheSamples) {
  const auto refused = [](auto change) {
    Outgoing outgoing;
    change(outgoing.store);
    return refusal([&] { outgoing.sent(); });
  };
  const std::string expected = "rank 0 is to send sample sample-2, key mask, but its store has changed meanwhile";
  const std::vector<std::string> id{"sample-2"};
  EXPECT_EQ(refused([&](SampleStore& store) { store.remove(id); }), expected);
  EXPECT_EQ(refused([&](SampleStore& store) {
              SampleBatch shorter(id);
              shorter.set("mask", Tensor::zeros(dtypes::boolean, {1}), Seqlens::one_each({1}));
              store.update(shorter);
            }),
            expected);
}

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
