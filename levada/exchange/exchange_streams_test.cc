#include "levada/exchange/exchange_streams.h"

#include <gmock/gmock.h>

#include <thread>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/exchange/exchange.h"
#include "levada/exchange/exchange_testing.h"
#include "levada/exchange/sample_directory_codec.h"

namespace levada {
namespace {

using testing::HasSubstr;

/// Rank 0 sends some of its store to rank 1.
struct Outgoing {
  std::vector<std::shared_ptr<Engine>> engines = inproc::make_group(2);
  std::shared_ptr<Channel> sent_on = engines[0]->open(0, {1}, 1), received_on = engines[1]->open(0, {1}, 1);
  ExchangeRequest request{{{{1}, {"sample-0", "sample-2"}}}, {"tokens", "mask"}};
  SampleIndex index{request.destinations};
  SampleStore store;
  Holdings holdings;
  ExchangeRows rows;

  explicit Outgoing(bool in_engine_memory = false, const SampleBatch& samples = made_samples(numbered_ids(3))) {
    if (in_engine_memory) store.use_memory_of(engines[0]);
    store.store(samples);
    holdings = holdings_of(store, index, request.keys);
    HoldingsTable table(index, request.keys);
    table.add(0, holdings.bytes);
    const auto requested = table.requested();
    const auto plan = plan_exchange(std::move(table).take(), request, requested, {});
    rows = decode_rows(*encode_rows(plan, 2, true, {}, table.contents())[0], 0, 2, index.size(), true);
  }
  OutgoingStream stream() const {
    return OutgoingStream(rows, rows.rows, index, holdings, SampleStore::Reading(store));
  }
  /// Sends the next message.
  void publish(OutgoingStream& stream, std::uint64_t max_carried) {
    OutgoingMessage message = stream.next(*engines[0], max_carried);
    EXPECT_TRUE(message.try_publish(*engines[0], *sent_on));
  }
  /// Returns the bytes of the next message.
  Bytes receive() {
    const Lease lease = *engines[1]->try_receive(*received_on).message;
    Bytes bytes;
    for (const ByteView run : runs_of(*engines[1], 0, lease.bytes, 1 << 20)) {
      bytes.insert(bytes.end(), run.begin(), run.end());
    }
    return bytes;
  }
  Bytes sent(std::uint64_t max_carried = 1 << 20) {
    Bytes bytes;
    for (OutgoingStream left = stream(); left.bytes_left() > 0;) {
      publish(left, max_carried);
      const Bytes next = receive();
      bytes.insert(bytes.end(), next.begin(), next.end());
    }
    return bytes;
  }
};

/// Returns samples of two keys with these many bytes each.
SampleBatch long_samples(std::int64_t tokens, std::int64_t mask) {
  SampleBatch batch(numbered_ids(3));
  for (const auto& [key, length] : {std::pair<std::string, std::int64_t>("tokens", tokens), {"mask", mask}}) {
    Tensor packed = Tensor::zeros(dtypes::uint8, {3 * length});
    for (std::size_t i = 0; i < packed.mutable_bytes().size(); ++i) {
      packed.mutable_bytes()[i] = static_cast<std::byte>(hash64(as_bytes(key), i));
    }
    batch.set(key, packed, Seqlens::one_each(std::vector<std::int64_t>(3, length)));
  }
  return batch;
}

TEST(OutgoingStream, FindsSamplesInAChangedStore) {
  Outgoing outgoing;
  const Bytes before = outgoing.sent();
  EXPECT_FALSE(before.empty());
  outgoing.store.remove(numbered_ids(1, "sample-1"));  // unknown id
  outgoing.store.store(made_samples({"another"}));
  outgoing.store.remove(std::vector<std::string>{"sample-1"});  // another sample takes its place
  EXPECT_EQ(outgoing.sent(), before);
}

TEST(OutgoingStream, SendsTheSameBytesInMessagesOfAnySize) {
  const Bytes expected = Outgoing(false, long_samples(100, 20)).sent();
  for (const bool in_engine_memory : {false, true}) {
    Outgoing outgoing(in_engine_memory, long_samples(100, 20));
    for (const std::uint64_t max_carried : {1, 7, 20, 21, 1000}) EXPECT_EQ(outgoing.sent(max_carried), expected);
  }
}

TEST(OutgoingStream, CopiesOnlySmallItemsOutOfEngineMemory) {
  for (const std::int64_t length : {63, 64, 10'000}) {
    Outgoing outgoing(true, long_samples(length, length));
    EXPECT_EQ(outgoing.sent(), Outgoing(false, long_samples(length, length)).sent());
    const std::uint64_t copied = copied_bytes();
    EXPECT_EQ(outgoing.sent().size(), static_cast<std::size_t>(4 * length));
    EXPECT_EQ(copied_bytes() - copied, length < 64 ? static_cast<std::uint64_t>(4 * length) : 0u);
  }
}

TEST(OutgoingStream, SendsSamplesThatTheStoreHasSinceRemoved) {
  Outgoing outgoing(true, long_samples(1000, 1000));
  const Bytes expected = outgoing.sent();
  {
    OutgoingStream stream = outgoing.stream();
    outgoing.publish(stream, 0);
  }
  outgoing.store.remove(outgoing.store.ids());
  for (int i = 0; i < 10; ++i) {  // reuse released memory
    SampleBatch other({std::to_string(i)});
    other.set("tokens", Tensor::zeros(dtypes::uint8, {6 << 10}), Seqlens::one_each({6 << 10}));
    outgoing.store.store(other);
  }
  EXPECT_EQ(outgoing.receive(), expected);
}

TEST(OutgoingStream, RejectsInvalidMessages) {
  const auto engines = inproc::make_group(2, {.memory_bytes = 1 << 20});
  const auto message = [](std::vector<MessageRun> runs, std::size_t carried) {
    ByteWriter writer;
    put_numbers(writer, runs);
    writer.put_bytes(Bytes(carried));
    return std::move(writer).take();
  };
  const auto refused = [&](const Bytes& bytes) {
    return refusal<CorruptMessage>([&] { runs_of(*engines[1], 0, bytes, 100); });
  };
  const std::uint64_t carried = MessageRun::carried;
  EXPECT_EQ(runs_of(*engines[1], 0, message({{carried, 60}, {carried, 40}}, 100), 100).size(), 2u);
  EXPECT_THAT(refused(message({{carried, 60}}, 59)), HasSubstr("a run of 60 bytes from rank 0"));
  EXPECT_THAT(refused(message({{carried, 60}, {0, 41}}, 60)), HasSubstr("a run of 41 bytes from rank 0"));
  EXPECT_THAT(refused(message({{carried, 60}}, 61)), HasSubstr("1 bytes too many from rank 0"));
  EXPECT_THAT(refused(message({{(1 << 20) - 10, 11}}, 0)), HasSubstr("a run of 11 bytes from rank 0"));
  EXPECT_THAT(refused(message({{carried - 1, 11}}, 0)), HasSubstr("bytes from rank 0"));
  EXPECT_THAT(refused(Bytes(3)), HasSubstr("bytes"));
}

TEST(OutgoingStream, RejectsAStoreThatNoLongerHasTheSamples) {
  const auto refused = [](auto change) {
    Outgoing outgoing;
    change(outgoing.store);
    return refusal([&] { outgoing.sent(); });
  };
  const std::string expected = "rank 0 cannot send sample sample-2, key mask: its store changed during the exchange";
  const std::vector<std::string> id{"sample-2"};
  EXPECT_EQ(refused([&](SampleStore& store) { store.remove(id); }), expected);
  EXPECT_EQ(refused([&](SampleStore& store) {
              SampleBatch shorter(id);
              shorter.set("mask", Tensor::zeros(dtypes::boolean, {1}), Seqlens::one_each({1}));
              store.update(shorter);
            }),
            expected);
}

TEST(IncomingRow, RespectsTheBoundOfAStoreThatAnotherThreadFills) {
  const SampleBatch coming = made_samples(numbered_ids(40), {"tokens"});
  const auto half = static_cast<std::int64_t>(coming.byte_count() / 2);
  SampleBatch filler({"filler"});
  filler.set("filler", Tensor::zeros(dtypes::uint8, {half}), Seqlens::one_each({half}));
  SampleStore sender, receiver({.max_bytes = coming.byte_count()});
  sender.store(coming);
  std::string texts[2];
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    if (rank == 0) {  // once the receiver has reported its room
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
  EXPECT_THAT(texts[0], testing::AnyOf("", HasSubstr("rank 1 aborted: the store would hold")));  // or it had finished
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
