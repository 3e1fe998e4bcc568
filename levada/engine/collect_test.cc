#include "levada/engine/collect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"

namespace levada {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

/// An engine on which nothing ever arrives: every wait times out at once. The test sets its status board and its
/// holders.
class Silent final : public Engine {
 public:
  explicit Silent(int rank, int size) : statuses(static_cast<std::size_t>(size)) {
    info_.name = "silent";
    info_.rank = rank;
    info_.size = size;
    info_.host_of.assign(static_cast<std::size_t>(size), 0);
  }

  using Engine::open;
  const EngineInfo& info() const override { return info_; }
  std::shared_ptr<Engine> subgroup(std::span<const int>, std::string_view) override { return nullptr; }
  bool shares_memory(int) const override { return false; }
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions) override {
    return std::make_shared<Channel>(this, from, std::vector<int>(to.begin(), to.end()), window);
  }
  using Engine::try_allocate;
  std::optional<Block> try_allocate(std::size_t, BlockUse) override { return std::nullopt; }
  bool try_publish(Channel&, Block&, std::size_t) override { return false; }
  bool try_publish(Channel&, const Lease&) override { return false; }
  Received try_receive(Channel&) override { return {.message = {}, .ended = over}; }
  bool is_abandoned(Channel&) override { return false; }
  Woken wait(const WaitFor&, Deadline) override { return Woken::timeout; }
  void wake() override {}
  void on_change(std::function<void()>) override {}
  void abort(std::string_view, ErrorKind) noexcept override {}
  std::optional<Cause> cause() override { return std::nullopt; }
  void close(Channel&, End) noexcept override {}
  void post(const Status& status) override { statuses[static_cast<std::size_t>(info_.rank)] = status; }
  Status status(int rank) override { return statuses[static_cast<std::size_t>(rank)]; }
  std::vector<Holder> holders(Channel&) override { return held; }
  std::uint64_t memory_in_use() override { return 0; }
  std::uint64_t trim() override { return 0; }

  void move_to_another_host(int rank) { info_.host_of[static_cast<std::size_t>(rank)] = 1; }

  std::vector<Status> statuses;
  std::vector<Holder> held;
  bool over = false;

 private:
  EngineInfo info_;
};

/// Returns `status` with an operation that began `ago`.
Status begun(Duration ago, Status status) {
  status.since_ns -= std::chrono::duration_cast<std::chrono::nanoseconds>(ago).count();
  return status;
}

template <typename Call>
std::string timeout_of(Call call) {
  try {
    static_cast<void>(call());
  } catch (const Timeout& timeout) {
    return timeout.what();
  }
  return "nothing timed out";
}

constexpr auto long_ago = std::chrono::seconds(30);

TEST(ExplainWait, NamesBothRanksAndTheOthersOperation) {
  Silent engine(3, 4);
  engine.post(Status::make("feed", 17, 0));
  engine.statuses[0] = begun(long_ago, Status::make("reading", 17, -1, "corpus.jsonl"));
  EXPECT_THAT(explain_wait(engine, "feed", 0, long_ago),
              MatchesRegex("rank 3 waited 30\\.0 s in feed for step 17 from rank 0; "
                           "rank 0: reading step 17, corpus\\.jsonl, for 30\\.[0-9] s"));
}

TEST(ExplainWait, FollowsAChainOfWaitingRanks) {
  Silent engine(3, 4);
  engine.statuses[0] = begun(long_ago, Status::make("agree", -1, 2));
  engine.statuses[2] = begun(long_ago, Status::make("compute", 5));
  EXPECT_THAT(
      explain_wait(engine, "start", 0, long_ago),
      MatchesRegex("rank 3 waited 30\\.0 s in start from rank 0; rank 0: agree, waiting for rank 2, for 30\\.. s; "
                   "rank 2: compute step 5, for 30\\.. s"));
}

TEST(ExplainWait, NamesEveryRankOfACycleOnce) {
  Silent engine(0, 4);
  engine.statuses[1] = Status::make("feed", 1, 2);
  engine.statuses[2] = Status::make("feed", 1, 3);
  engine.statuses[3] = Status::make("feed", 1, 1);
  const std::string text = explain_wait(engine, "feed", 1, long_ago);
  EXPECT_EQ(std::count(text.begin(), text.end(), ';'), 3) << text;
}

TEST(ExplainWait, StopsAtTheCallingRank) {
  Silent engine(0, 2);
  engine.statuses[1] = Status::make("feed", 1, 0);
  EXPECT_THAT(explain_wait(engine, "feed", 1, long_ago), HasSubstr("; rank 1: feed step 1, waiting for rank 0, for "));
}

TEST(ExplainWait, NamesFewRanksOfALongChain) {
  Silent engine(0, 1000);
  for (int rank = 1; rank < 999; ++rank)
    engine.statuses[static_cast<std::size_t>(rank)] = Status::make("feed", 1, rank + 1);
  EXPECT_LT(explain_wait(engine, "feed", 1, long_ago).size(), 1000U);
}

TEST(ExplainWait, ReportsARankThatHasPostedNothing) {
  Silent engine(0, 2);
  EXPECT_EQ(explain_wait(engine, "feed", 1, long_ago),
            "rank 0 waited 30.0 s in feed from rank 1; rank 1: has posted nothing");
}

TEST(ExplainWait, IgnoresTheClockOfAnotherHost) {
  Silent engine(0, 2);
  engine.move_to_another_host(1);
  engine.statuses[1] = Status::make("reading", 4);
  EXPECT_THAT(explain_wait(engine, "feed", 1, long_ago), EndsWith("; rank 1: reading step 4"));
}

TEST(ExplainWait, NamesLocalRanksIfARankOfAnotherHostDoesNotAnswer) {
  Silent engine(3, 4);
  for (const int rank : {0, 1}) engine.move_to_another_host(rank);
  engine.statuses[0] = Status::make("waiting for room", 73, 0);
  engine.statuses[2] = begun(long_ago, Status::make("computing", 72));
  EXPECT_THAT(explain_wait(engine, "feed", 0, long_ago),
              EndsWith("; rank 0: waiting for room step 73, waiting for rank 0"));
  engine.statuses[0].unanswered_ms = 4000;
  EXPECT_THAT(explain_wait(engine, "feed", 0, long_ago),
              MatchesRegex(".*; it has not answered for 4\\.0 s; rank 2: computing step 72, for 30\\.. s"));
  engine.statuses[1] = Status::make("reading", 73);
  engine.statuses[0].waiting_for = 1;
  EXPECT_THAT(explain_wait(engine, "feed", 0, long_ago),
              HasSubstr("; rank 1: reading step 73; rank 2: computing step 72"));
}

TEST(ExplainWait, NamesTheHostPeersOfRemoteRanksThatWaitInACycle) {
  Silent engine(0, 4);
  for (const int rank : {2, 3}) engine.move_to_another_host(rank);
  engine.statuses[1] = Status::make("waiting for room", 80, 2);
  engine.statuses[2] = Status::make("receiving", 80, 1);
  engine.statuses[3].unanswered_ms = 3000;
  EXPECT_THAT(explain_wait(engine, "feed", 1, long_ago),
              EndsWith("; rank 2: receiving step 80, waiting for rank 1; rank 3: has not answered for 3.0 s"));
}

TEST(ExplainWait, NamesTheHostPeersOfARankThatWaitsForTheCaller) {
  Silent engine(0, 3);
  engine.statuses[1] = Status::make("exchange", -1, 0);
  engine.statuses[2] = begun(long_ago, Status::make("computing", 7));
  EXPECT_THAT(explain_wait(engine, "exchange", 1, long_ago), HasSubstr("; rank 2: computing step 7, for 30"));
}

TEST(ExplainWait, IgnoresANonexistentRank) {
  Silent engine(0, 2);
  engine.statuses[1] = Status::make("reading", 4, 77);
  EXPECT_THAT(explain_wait(engine, "feed", 1, long_ago), Not(HasSubstr("; rank 77")));
}

TEST(ExplainWait, TerminatesUnterminatedText) {
  Silent engine(0, 2);
  engine.statuses[1].operation.fill('a');
  engine.statuses[1].detail.fill('b');
  EXPECT_THAT(explain_wait(engine, "feed", 1, long_ago),
              HasSubstr(std::string(24, 'a') + ", " + std::string(208, 'b')));
}

TEST(Receive, TimesOutWithAnExplanation) {
  Silent engine(1, 2);
  engine.statuses[0] = Status::make("reading", 3);
  const auto channel = engine.open(0, {1}, 1);
  EXPECT_THAT(timeout_of([&] { return receive(engine, *channel, Deadline::now(), "feed"); }),
              AllOf(StartsWith("rank 1 waited "), HasSubstr(" in feed from rank 0; rank 0: reading step 3")));
}

TEST(Receive, ReturnsNothingIfTheChannelHasEnded) {
  Silent engine(1, 2);
  engine.over = true;
  const auto channel = engine.open(0, {1}, 1);
  EXPECT_FALSE(receive(engine, *channel, Deadline::now(), "feed"));
}

TEST(Publish, TimesOutNamingTheRanksThatFillTheWindow) {
  Silent engine(0, 4);
  engine.held = {{.rank = 1, .not_received = 1, .leased = 2}, {.rank = 2, .not_received = 4, .leased = 1}};
  engine.statuses[2] = Status::make("compute", 9);
  const auto channel = engine.open(0, {1, 2, 3}, 4);
  EXPECT_THAT(timeout_of([&] { return publish(engine, *channel, Block(), 1, Deadline::now(), "feed"), 0; }),
              AllOf(HasSubstr("in feed for room to send to ranks 1, 2, 3, where at most 4 messages may be under way"),
                    HasSubstr("; rank 2 holds 4 not received, 1 still leased; rank 2: compute step 9"),
                    Not(HasSubstr("rank 1 holds"))));
}

TEST(Allocate, TimesOutNamingTheRanksThatHoldSentMessages) {
  Silent engine(0, 3);
  engine.held = {{.rank = 2, .not_received = 0, .leased = 3}};
  const auto channel = engine.open(0, {1, 2}, 4);
  Channel* const sent[] = {channel.get()};
  EXPECT_THAT(timeout_of([&] { return allocate(engine, 1 << 20, Deadline::now(), "feed", sent); }),
              AllOf(HasSubstr("in feed for memory for a block of 1.0 MiB"),
                    HasSubstr("; rank 2 holds messages: 3 still leased; end leases sooner")));
}

TEST(Allocate, TimesOutSuggestingMoreMemoryIfNoRankHoldsAny) {
  Silent engine(0, 3);
  EXPECT_THAT(timeout_of([&] { return allocate(engine, 100, Deadline::now(), "feed"); }),
              EndsWith("for memory for a block of 100 B; give the engine more memory"));
}

TEST(OperationStatus, RestoresTheEarlierStatusAtTheEnd) {
  Silent engine(0, 1);
  const std::string operation(40, 'o');  // longer than a status can hold
  const auto now = [&] { return std::string(engine.statuses[0].operation.data()); };
  {
    OperationStatus status(engine, operation);
    status.post(0, "detail", 7);
    EXPECT_EQ(now(), std::string(23, 'o'));
  }
  EXPECT_EQ(now(), "computing");
  engine.post(Status::make("mine", 4));
  {
    OperationStatus status(engine, operation);
    status.post();
    EXPECT_EQ(engine.statuses[0].step, 4);
  }
  EXPECT_EQ(now(), "mine");
}

TEST(OperationStatus, KeepsAStatusThatAnotherOperationHasPosted) {
  Silent engine(0, 1);
  {
    OperationStatus status(engine, "mine");
    status.post();
    engine.post(Status::make("raised", 5));
  }
  EXPECT_EQ(std::string(engine.statuses[0].operation.data()), "raised");
}

TEST(Status, TruncatesAndTerminatesText) {
  const Status status = Status::make(std::string(50, 'o'), 3, 2, std::string(500, 'd'));
  EXPECT_EQ(std::string_view(status.operation.data()), std::string(23, 'o'));
  EXPECT_EQ(std::string_view(status.detail.data()), std::string(207, 'd'));
  EXPECT_EQ(status.step, 3);
  EXPECT_EQ(status.waiting_for, 2);
  EXPECT_GT(status.since_ns, 0);
}

TEST(Status, CutsTextBetweenCharacters) {
  const Status status = Status::make(std::string(22, 'o') + "\u00e9", 0);
  EXPECT_EQ(std::string_view(status.operation.data()), std::string(22, 'o'));
}

/// Returns the lines that a Reminder writes while it waits for `wait` on an engine on which nothing arrives.
std::string reminded(Duration first, Duration wait, const std::string& reading = "") {
  const auto engines = inproc::make_group(2);
  const auto channel = engines[0]->open(1, {0}, 1);
  Channel* const channels[] = {channel.get()};
  Reminder reminder(first);
  int times = 0;
  testing::internal::CaptureStderr();
  const auto woken = reminder.wait(*engines[0], {.receive = channels}, Deadline::after(wait),
                                   [&] { return "rank 0 waits, line " + std::to_string(++times) + reading; });
  EXPECT_EQ(woken, Woken::timeout);
  return testing::internal::GetCapturedStderr();
}

TEST(Reminders, ALongWaitRepeatedlyReportsWhomItWaitsFor) {
  const auto text = reminded(std::chrono::milliseconds(20), std::chrono::seconds(3));
  EXPECT_THAT(text,
              StartsWith("levada: rank 0 waits, line 1; still waiting\nlevada: rank 0 waits, line 2; still waiting\n"));
}

TEST(Reminders, EscapeControlCharacters) {
  const auto text = reminded(std::chrono::milliseconds(20), std::chrono::milliseconds(200), " \x1b]0;owned\a\x1b[2J");
  EXPECT_THAT(text, StartsWith("levada: rank 0 waits, line 1 "));
  EXPECT_EQ(text.find_first_of("\x1b\a"), text.npos) << text;
}

TEST(Reminders, AShortWaitWritesNothing) {
  EXPECT_EQ(reminded(Reminder::after, std::chrono::milliseconds(20)), "");
  EXPECT_EQ(reminded(Duration::max(), std::chrono::milliseconds(20)), "");
}

}  // namespace
}  // namespace levada
