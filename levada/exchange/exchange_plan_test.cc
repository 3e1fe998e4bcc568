#include "levada/exchange/exchange_plan.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/refusal_testing.h"
#include "levada/exchange/planner.h"

namespace levada {
namespace {

using testing::HasSubstr;

SampleBatch samples(const std::vector<std::string>& ids, const std::vector<std::int64_t>& lengths) {
  SampleBatch batch(ids);
  batch.set({"tokens", dtypes::int64, {}}, Seqlens::one_each(lengths));
  return batch;
}

TEST(ExchangePlan, PrintsAndTravels) {
  Ownership ownership;
  ownership.add(0, samples({"a", "b", "c"}, {300, 500, 100}));
  ownership.add(1, samples({"d"}, {700}));
  const auto plan = plan_exchange(ownership, {{{{2, 3}, {"a", "b", "d"}}}, {"tokens"}}, {.chunk_bytes = 4096});
  EXPECT_EQ("\n" + plan.to_table(), R"(
from  to   samples  keys    part   messages    bytes
----------------------------------------------------
   0  2,3        2  tokens  whole         2  6.2 KiB
   1  2,3        1  tokens  whole         2  5.5 KiB

from  to    bytes
-----------------
   0   2  6.2 KiB
   0   3  6.2 KiB
   1   2  5.5 KiB
   1   3  5.5 KiB

moved        11.7 KiB  in 2 multicasts, 4 messages of at most 4.0 KiB
least        11.7 KiB  that any plan moves: what is lacked somewhere, once
delivered    23.4 KiB  among 4 ranks
busiest       6.2 KiB  sent by rank 0
)");
  const auto json = nlohmann::json::parse(plan.to_json(true));
  EXPECT_EQ(json["multicasts"][0]["ids"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(json["busiest"]["rank"], 0);
  const Bytes bytes = plan.encode();
  const auto back = ExchangePlan::decode(bytes);
  EXPECT_EQ(back, plan);
  EXPECT_EQ(back.fingerprint(), plan.fingerprint());
  EXPECT_EQ(back.encode(), bytes);
  EXPECT_FALSE(back.samples().contains("c"));
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_THROW(ExchangePlan::decode(ByteView(bytes).first(cut)), CorruptMessage);
  }
  std::mt19937 random(32);
  for (int round = 0; round < 2000; ++round) {
    Bytes changed = bytes;
    changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      const Bytes again = ExchangePlan::decode(changed).encode();
      EXPECT_EQ(ExchangePlan::decode(again).encode(), again);
    } catch (const CorruptMessage&) {
    }
  }
}

TEST(ExchangePlan, IsReadInLinearTime) {
  constexpr int senders = 50'000, receivers = 400'000;
  const Bytes empty = ExchangePlan().encode();
  ByteWriter writer;
  for (const std::byte byte : ByteView(empty).first(empty.size() - 8)) writer.put(byte);
  writer.put(std::uint32_t{2});
  for (const int last : {most_ranks - 2, most_ranks - 1}) {  // lists that differ at the end
    writer.put(std::uint32_t{receivers});
    for (int i = 1; i < receivers; ++i) writer.put(senders + i);
    writer.put(last);
  }
  writer.put(std::uint32_t{2 * senders});
  for (int from = 0; from < senders; ++from) {
    for (const std::uint32_t to : {0u, 1u}) {
      writer.put(from);
      writer.put(to);
      writer.put(std::uint32_t{0});
    }
  }
  const auto begin = Clock::now();
  EXPECT_EQ(ExchangePlan::decode(writer.view()).size(), std::size_t{2 * senders});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
}

TEST(ExchangePlan, DoesNotSendAnItemTwice) {
  Ownership ownership;
  ownership.add(0, samples({"a", "b"}, {3, 5}));
  Bytes bytes = plan_exchange(ownership, {{{{1}, {"a", "b"}}}, {"tokens"}}).encode();
  const std::size_t item = 8;  // the last of the bytes: the sample's number, key and part
  std::copy_n(bytes.end() - 2 * item, item, bytes.end() - item);
  EXPECT_THAT(refusal<CorruptMessage>([&] { ExchangePlan::decode(bytes); }),
              HasSubstr("an item that a rank gets twice"));
}

}  // namespace
}  // namespace levada
