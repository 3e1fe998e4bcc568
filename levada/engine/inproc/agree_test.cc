#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr auto agree_timeout = std::chrono::seconds(20);
constexpr auto brief = std::chrono::milliseconds(50);

std::future<std::string> agreeing(Engine& engine, Duration wait) {
  return std::async(std::launch::async, [&engine, wait]() -> std::string {
    try {
      static_cast<void>(agree(engine, as_bytes("mine"), Deadline::after(wait), "start-up"));
    } catch (const Error& error) {
      return std::string(error.name()) + ": " + error.what();
    }
    return "agreed";
  });
}

TEST(Agree, TimesOutNamingEveryMissingRank) {
  const auto engines = inproc::make_group(4);
  engines[3]->post(Status::make("importing", -1, -1, "the model"));
  EXPECT_THAT(
      agreeing(*engines[0], brief).get(),
      AllOf(HasSubstr("Timeout: rank 0 waited "), HasSubstr("in start-up from rank 1; rank 1: has posted nothing"),
            HasSubstr("; missing are ranks 1, 2, 3")));
}

TEST(Agree, TimesOutOnTheOtherRanksNamingTheRanksMissingAtRankZero) {
  const auto engines = inproc::make_group(4);
  auto first = agreeing(*engines[0], agree_timeout);
  while (engines[0]->status(0).detail[0] == '\0') std::this_thread::yield();
  EXPECT_THAT(agreeing(*engines[3], brief).get(),
              AllOf(HasSubstr("Timeout: rank 3 waited "), HasSubstr("rank 0: start-up, missing are ranks 1, 2"),
                    HasSubstr("; rank 1: has posted nothing")));
  engines[1]->abort("enough");
  EXPECT_THAT(first.get(), HasSubstr("enough"));
}

TEST(Agree, ThrowsTheReasonOfAnAbort) {
  const auto engines = inproc::make_group(3);
  auto first = agreeing(*engines[0], agree_timeout);
  auto second = agreeing(*engines[1], agree_timeout);
  engines[2]->abort("no data");
  EXPECT_THAT(first.get(), AllOf(HasSubstr("EngineError"), HasSubstr("no data")));
  EXPECT_THAT(second.get(), AllOf(HasSubstr("EngineError"), HasSubstr("no data")));
}

TEST(Agree, ThrowsPeerLostNamingTheLostRank) {
  const auto engines = inproc::make_group(3);
  auto first = agreeing(*engines[0], agree_timeout);
  auto second = agreeing(*engines[1], agree_timeout);
  inproc::lose(*engines[2]);
  EXPECT_THAT(first.get(), AllOf(HasSubstr("PeerLost"), HasSubstr("rank 2")));
  EXPECT_THAT(second.get(), AllOf(HasSubstr("PeerLost"), HasSubstr("rank 2")));
}

TEST(Agree, ThrowsIfARankHasLeft) {
  auto engines = inproc::make_group(2);
  engines[1].reset();
  EXPECT_THAT(agreeing(*engines[0], agree_timeout).get(), HasSubstr("PeerLost: rank 1 left before start-up"));
}

TEST(Agree, NamesTheStepAndExceptionWithWhichARankLeft) {
  auto engines = inproc::make_group(2);
  engines[1]->post(Status::make(raised_operation, 7, -1, "ValueError: loss is NaN"));
  engines[1].reset();
  EXPECT_THAT(agreeing(*engines[0], agree_timeout).get(),
              HasSubstr("PeerLost: rank 1 left at step 7 with ValueError: loss is NaN before start-up"));
}

TEST(Agree, RethrowsTheExceptionOfItsPoll) {
  struct Interruption {};
  const std::function<void()> poll = [] { throw Interruption(); };
  for (const int rank : {0, 1}) {
    const auto engines = inproc::make_group(2);
    EXPECT_THROW(agree(*engines[static_cast<std::size_t>(rank)], {}, Deadline::never(), "start-up", &poll),
                 Interruption);
  }
}

TEST(Agree, KeepsAStatusThatAnotherOperationPostsDuringTheCall) {
  const auto engines = inproc::make_group(2);
  auto first = agreeing(*engines[0], agree_timeout);
  while (std::string_view(engines[0]->status(0).operation.data()) != "start-up") std::this_thread::yield();
  engines[0]->post(Status::make("raised", 4));
  auto second = agreeing(*engines[1], agree_timeout);
  EXPECT_EQ(first.get() + second.get(), "agreedagreed");
  EXPECT_STREQ(engines[1]->status(0).operation.data(), "raised");
}

TEST(Agree, RestoresTheStatusBoard) {
  const auto engines = inproc::make_group(2);
  engines[0]->post(Status::make("mine", 4));
  auto first = agreeing(*engines[0], agree_timeout);
  while (std::string_view(engines[0]->status(0).operation.data()) != "start-up") std::this_thread::yield();
  auto second = agreeing(*engines[1], agree_timeout);
  EXPECT_EQ(first.get() + second.get(), "agreedagreed");
  EXPECT_STREQ(engines[1]->status(0).operation.data(), "mine");
  EXPECT_STREQ(engines[0]->status(1).operation.data(), "computing");
}

std::vector<std::shared_ptr<const Bytes>> one_byte_each(std::span<const ByteView> all) {
  return std::vector(all.size(), std::make_shared<const Bytes>(1));
}

TEST(GatherScatter, MayExceedItsTimeoutWhileRankZeroMakesProgress) {
  constexpr Duration timeout = std::chrono::seconds(5), pause = std::chrono::seconds(3);
  const auto begin = Clock::now();
  inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
    GatherScatter calls(engine, "a call");
    if (engine->info().rank == 2) std::this_thread::sleep_for(pause);
    const auto answer = [&](std::span<const ByteView> all) {
      std::this_thread::sleep_for(pause);
      return one_byte_each(all);
    };
    EXPECT_EQ(calls.call(as_bytes("mine"), answer, timeout).bytes.size(), 1u);
  });
  EXPECT_GT(Clock::now() - begin, timeout) << "or it has tested nothing";
}

TEST(GatherScatter, TimesOutIfRankZeroIsInAnotherCall) {
  const auto engines = inproc::make_group(2);
  engines[0]->post(Status::make("feed", 4));
  GatherScatter calls(engines[1], "a call");
  try {
    calls.call({}, one_byte_each, brief);
    ADD_FAILURE() << "no Timeout";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("in a call from rank 0; rank 0: feed step 4"));
  }
}

}  // namespace
}  // namespace levada
