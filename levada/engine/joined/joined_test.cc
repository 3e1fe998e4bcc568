#include "levada/engine/joined/joined.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance_testing.h"
#include "levada/engine/joined/hosts_testing.h"
#include "levada/engine/process_failure.h"

namespace levada::joined {
namespace {

using test::Hosts;
using test::Job;
using test::run_ranks;

class JoinedConformance : public testing::TestWithParam<conformance::Trial> {
 protected:
  static void expect_holds(const Hosts& hosts) {
    const auto body = [](const auto& engine, Job&) { GetParam().test.run(engine); };
    EXPECT_EQ(run_ranks(GetParam().ranks, hosts, body), "");
  }
};

TEST_P(JoinedConformance, HoldsForTwoRanksOnEachHost) {
  expect_holds({.ranks_a_host = 2});
}

TEST_P(JoinedConformance, HoldsForOneRankOnEachHost) {
  expect_holds({.ranks_a_host = 1});
}

TEST_P(JoinedConformance, HoldsForManyRanksOnEachHost) {
  expect_holds({.ranks_a_host = 3});
}

TEST_P(JoinedConformance, HoldsForATreeWithoutHeartbeat) {
  expect_holds({.ranks_a_host = 2,
                .options = {.degree = 1, .leave_timeout = std::chrono::seconds(2)},
                .heartbeat = Duration::max()});
}

TEST_P(JoinedConformance, HoldsForATreeOfHostsWithOneRankEach) {
  expect_holds({.ranks_a_host = 1, .options = {.degree = 2, .leave_timeout = std::chrono::seconds(2)}});
}

INSTANTIATE_TEST_SUITE_P(, JoinedConformance, testing::ValuesIn(conformance::all_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

class JoinedDeath : public testing::TestWithParam<conformance::DeathTrial> {};

void expect_death_is_seen(const conformance::DeathTrial& trial, Duration heartbeat) {
  for (const int ranks_a_host : {1, 2, 3}) {
    const auto body = [&](const std::shared_ptr<Engine>& engine, Job& job) {
      trial.test.run(engine, [&] { job.lose(engine->info().rank); });
    };
    EXPECT_EQ(run_ranks(trial.ranks, {.ranks_a_host = ranks_a_host, .heartbeat = heartbeat}, body), "")
        << ranks_a_host << " a host";
  }
}

TEST_P(JoinedDeath, Holds) {
  expect_death_is_seen(GetParam(), Hosts().heartbeat);
}

TEST_P(JoinedDeath, HoldsWithoutHeartbeat) {
  expect_death_is_seen(GetParam(), Duration::max());
}

INSTANTIATE_TEST_SUITE_P(, JoinedDeath, testing::ValuesIn(conformance::all_death_trials()),
                         [](const auto& trial) { return conformance::name_of(trial.param); });

TEST(Joined, ARankLeavesManyGroupsConcurrentlyAfterADeath) {
  const auto body = [](const std::shared_ptr<Engine>& engine, Job& job) {
    const std::vector<int> all{0, 1, 2, 3};
    std::vector<std::shared_ptr<Engine>> groups;
    for (int i = 0; i < 50; ++i) groups.push_back(engine->subgroup(all, "one of many"));
    const auto deadline = Deadline::after(std::chrono::seconds(20));
    if (engine->info().rank == 3) {
      agree(*engine, {}, deadline, "test");
      return job.lose(3);
    }
    const auto wait_for_death = [&] {
      agree(*engine, {}, deadline, "test");
      engine->wait({}, deadline);
    };
    EXPECT_THROW(wait_for_death(), PeerLost);
    const auto since = Clock::now();
    groups.clear();
    EXPECT_LT(Clock::now() - since, std::chrono::seconds(6)) << "the groups must be left concurrently";
  };
  EXPECT_EQ(run_ranks(4, {}, body), "");
}

TEST(Joined, ARankThatLeavesBecauseOfADeathIsNotMistakenForTheEndOfItsData) {
  for (int trial = 0; trial < 20; ++trial) {
    const auto body = [](const std::shared_ptr<Engine>& engine, Job& job) {
      const int rank = engine->info().rank;
      const auto channel = rank < 2 ? engine->open(0, {1}, 1) : nullptr;
      Channel* const it[] = {channel.get()};
      const WaitFor messages{.receive = it};
      try {
        agree(*engine, {}, Deadline::after(std::chrono::seconds(20)), "test");
        if (rank == 3) return job.lose(3);
        engine->wait(rank == 1 ? messages : WaitFor{}, Deadline::after(std::chrono::seconds(20)));
        throw conformance::Failure("a wait ended although no message has arrived");
      } catch (const PeerLost& lost) {
        if (lost.rank() != 3) throw;
      }
    };
    EXPECT_EQ(run_ranks(4, {}, body), "");
  }
}

/// Returns the error of a collective call of all ranks, or nothing.
std::string error_of_meeting(Engine& engine) {
  try {
    agree(engine, {}, Deadline::after(std::chrono::seconds(20)), "meeting");
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Rank `leaver` of four calls only `begin`; the others then meet. Returns the error that each of them throws, by rank.
/// No rank ends the group because of its error.
std::vector<std::string> meet_without(
    int leaver, int ranks_a_host, int degree,
    const std::function<std::shared_ptr<void>(Engine&)>& begin = [](Engine&) { return nullptr; }) {
  std::vector<std::string> thrown(4);
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job& job) {
    const int rank = engine->info().rank;
    job.near[static_cast<std::size_t>(rank)].reset();
    const auto kept = begin(*engine);
    if (rank != leaver) thrown[static_cast<std::size_t>(rank)] = error_of_meeting(*engine);
  };
  const auto since = Clock::now();
  const Options options{.degree = degree, .leave_timeout = std::chrono::seconds(20)};
  EXPECT_EQ(run_ranks(4, {.ranks_a_host = ranks_a_host, .options = options}, body), "");
  EXPECT_LT(Clock::now() - since, std::chrono::seconds(15));
  return thrown;
}

void expect_loss_of_forwarder(const std::vector<std::string>& thrown) {
  EXPECT_EQ(thrown[0], "rank 2 left before meeting");
  EXPECT_THAT(thrown[1], testing::StartsWith("rank 0 left with PeerLost: rank 2 left before meeting"));
  EXPECT_EQ(thrown[3], "rank 2 left before it forwarded what rank 0 sends");
}

TEST(Joined, AForwarderThatLeavesBeforeItOpensTheChannelIsLostToItsReceivers) {
  expect_loss_of_forwarder(meet_without(2, 2, 16));
}

TEST(Joined, ARankThatStillForwardsInAnotherGroupLeavesThisOne) {
  expect_loss_of_forwarder(meet_without(2, 2, 16, [](Engine& engine) -> std::shared_ptr<void> {
    const std::vector<int> members{0, 1, 2, 3};
    const auto group = engine.subgroup(members, "kept");
    const auto channel = engine.info().rank == 1 ? nullptr : group->open(0, {2, 3}, 1);
    return std::make_shared<std::pair<std::shared_ptr<Engine>, std::shared_ptr<Channel>>>(group, channel);
  }));
}

TEST(Joined, AForwarderOfATreeEndsTheGroupIfItsPredecessorHasLeft) {
  const auto thrown = meet_without(1, 1, 1);
  EXPECT_EQ(thrown[0], "rank 1 left before meeting");
  for (const std::size_t rank : {2, 3}) {
    EXPECT_EQ(thrown[rank], "rank 2 aborted: rank 1 left before it forwarded what rank 0 sends");
  }
}

TEST(Joined, ARankForwardsAnAbortToOtherHostsBeforeItLeavesBecauseOfIt) {
  std::atomic<bool> has_ended = false;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job& job) {
    const int rank = engine->info().rank;
    const auto channel = rank == 0 ? nullptr : engine->open(1, {2}, 1);
    try {
      agree(*engine, {}, Deadline::after(std::chrono::seconds(20)), "test");
      if (rank == 0) {
        job.network.hold(0, 1);
        job.network.hold(0, 2);
        engine->abort("the dam broke");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        job.network.release(0, 1);
        for (const Deadline late = Deadline::after(std::chrono::seconds(20)); !has_ended && !late.expired();) {
          std::this_thread::yield();
        }
        job.network.release(0, 2);
      } else if (rank == 1) {
        engine->wait({}, Deadline::after(std::chrono::seconds(20)));
      } else {
        receive(*engine, *channel, Deadline::after(std::chrono::seconds(20)), "test");
        throw conformance::Failure("an abort was mistaken for an end");
      }
    } catch (const EngineError& error) {
      has_ended = rank == 2 || has_ended;
      EXPECT_STREQ(error.what(), "rank 0 aborted: the dam broke");
    }
  };
  EXPECT_EQ(run_ranks(3, {}, body), "");
}

TEST(Joined, ARankForwardsAnAbortOnItsHostBeforeItLeavesBecauseOfIt) {
  for (const auto kind : {ErrorKind::engine, ErrorKind::timeout}) {
    const auto body = [kind](const std::shared_ptr<Engine>& engine, Job& job) {
      const int rank = engine->info().rank;
      const auto channel = rank < 2 ? engine->open(0, {1}, 1) : nullptr;
      const auto limit = Deadline::after(std::chrono::seconds(20));
      try {
        agree(*engine, {}, limit, "test");
        if (rank == 2) {
          for (const int from : {0, 2, 3}) job.network.hold(from, 1);
          engine->abort("the dam broke", kind);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          for (const int from : {0, 2, 3}) job.network.release(from, 1);
        }
        if (rank != 1) engine->wait({}, limit);
        receive(*engine, *channel, limit, "test");
        throw conformance::Failure("an abort was mistaken for an end");
      } catch (const conformance::Failure&) {
        throw;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("the dam broke"), std::string::npos) << error.what();
      }
    };
    EXPECT_EQ(run_ranks(4, {}, body), "");
  }
}

TEST(Joined, ReportsItsDegree) {
  const auto body = [](const std::shared_ptr<Engine>& engine, Job&) {
    EXPECT_EQ(engine->info().degree, 2);
    EXPECT_EQ(engine->subgroup(std::vector{engine->info().rank}, "alone")->info().degree, 2);
  };
  EXPECT_EQ(run_ranks(4, {.ranks_a_host = 1, .options = {.degree = 2}}, body), "");
}

TEST(Joined, ForwardsWithoutCopying) {
  constexpr std::size_t bytes = 1 << 20;
  std::atomic<std::uint64_t> copied = 0;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const Deadline limit = Deadline::after(std::chrono::seconds(20));
    const int rank = engine->info().rank;
    const std::vector<int> all{0, 1, 2, 3, 4, 5};
    const auto channel = engine->open(0, all, 2);
    agree(*engine, {}, limit, "test");
    if (rank == 0) copied = copied_bytes();
    agree(*engine, {}, limit, "test");
    for (int i = 0; i < 8; ++i) {
      if (rank == 0) publish(*engine, *channel, allocate(*engine, bytes, limit, "test"), bytes, limit, "test");
      static_cast<void>(receive(*engine, *channel, limit, "test"));
    }
    agree(*engine, {}, limit, "test");
    if (rank == 0) copied = copied_bytes() - copied;
  };
  EXPECT_EQ(run_ranks(6, {}, body), "");
  // The test transport copies each body once per other host.
  EXPECT_LT(copied, (8 * 2 + 1) * bytes);
}

Deadline limit() {
  return Deadline::after(std::chrono::seconds(20));
}

void send(Engine& engine, Channel& channel, std::size_t bytes, int value) {
  Block block = allocate(engine, bytes, limit(), "test");
  std::memset(block.memory().data(), value, bytes);
  publish(engine, channel, std::move(block), bytes, limit(), "test");
}

void expect_message(const std::optional<Lease>& lease, std::size_t bytes, int value) {
  const Bytes expected(bytes, static_cast<std::byte>(value));
  if (!lease || !std::equal(lease->bytes.begin(), lease->bytes.end(), expected.begin(), expected.end())) {
    throw conformance::Failure("a message did not arrive as it was sent");
  }
}

/// Waits until another rank's thread has set `flag`.
void wait_until(const std::atomic<bool>& flag) {
  for (const Deadline deadline = limit(); !flag;) {
    if (deadline.expired()) throw conformance::Failure("another rank took too long");
    std::this_thread::yield();
  }
}

TEST(Joined, AHostHoldsAtMostTwoWindowsAndOneMessage) {
  constexpr std::size_t bytes = 1 << 20;
  constexpr int window = 2;
  std::atomic<bool> is_full = false;
  std::atomic<int> sent = 0;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const int rank = engine->info().rank;
    const auto channel = rank == 1 ? nullptr : engine->open(0, {2, 3}, window);
    Channel* const own[] = {channel.get()};
    while (rank == 0 &&
           engine->wait({.publish = own}, Deadline::after(std::chrono::milliseconds(300))) == Woken::ready) {
      send(*engine, *channel, bytes, sent++);
    }
    if (rank == 0) is_full = true;
    if (rank >= 2) {
      wait_until(is_full);
      EXPECT_LE(engine->memory_in_use(), (2 * window + 1) * bytes);
      for (int i = 0; i < sent; ++i) expect_message(receive(*engine, *channel, limit(), "test"), bytes, i);
    }
    agree(*engine, {}, limit(), "test");
  };
  EXPECT_EQ(run_ranks(4, {}, body), "");
  EXPECT_LE(sent, 2 * window + 1);
}

TEST(Joined, ALeavingRankForwardsOnItsHostUntilTheChannelEnds) {
  std::atomic<bool> leaves = false;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const int rank = engine->info().rank;
    if (rank == 1) return;
    const auto channel = engine->open(0, {2, 3}, 1);
    if (rank == 0) {
      send(*engine, *channel, 1'000, 0);
      wait_until(leaves);
      for (int i = 1; i < 50; ++i) send(*engine, *channel, 1'000, i);
    } else if (rank == 2) {
      expect_message(receive(*engine, *channel, limit(), "test"), 1'000, 0);
      engine->close(*channel, End::receiving);
      leaves = true;
    } else {
      for (int i = 0; i < 50; ++i) expect_message(receive(*engine, *channel, limit(), "test"), 1'000, i);
      if (receive(*engine, *channel, limit(), "test")) throw conformance::Failure("the channel did not end");
    }
  };
  EXPECT_EQ(run_ranks(4, {.options = {.leave_timeout = std::chrono::seconds(20)}}, body), "");
}

/// Rank 2 leaves while rank 0 keeps the channel open, and the others wait. Returns their errors.
std::string leave_early(const Options& options) {
  const auto body = [](const std::shared_ptr<Engine>& engine, Job&) {
    const int rank = engine->info().rank;
    const auto channel = rank == 1 ? nullptr : engine->open(0, {2, 3}, 1);
    if (rank == 0) engine->post(Status::make("saving", 7));
    if (rank == 3) receive(*engine, *channel, limit(), "test");
    else if (rank != 2) engine->wait({}, limit());
  };
  return run_ranks(4, {.options = options}, body);
}

TEST(Joined, ALeavingRankEndsTheGroupsItForwardsForAfterItsTimeout) {
  EXPECT_THAT(leave_early({.leave_timeout = std::chrono::milliseconds(200)}),
              testing::MatchesRegex("(.*rank 2 aborted: it has left, and after its leave_timeout of 200.0 ms still "
                                    "forwards what rank 0 sends to rank 3\n){3}"));
}

TEST(Joined, ALeavingRankEndsTheGroupsItForwardsForIfInterrupted) {
  std::atomic<int> calls = 0;
  EXPECT_THAT(leave_early({.is_interrupted = [&] { return ++calls == 3; }}),
              testing::MatchesRegex("(.*rank 2 aborted: it was interrupted while it was leaving and still forwarded "
                                    "what rank 0 sends to rank 3\n){3}"));
  EXPECT_EQ(calls, 3);
}

TEST(Joined, ARankThatAnExceptionEndsQuotesItToTheRanksItForwardsTo) {
  const auto fail = [] {
    ProcessFailure::note_exception("ValueError: loss is NaN", Duration::zero());
    return false;
  };
  EXPECT_THAT(leave_early({.failed_leave_timeout = std::chrono::milliseconds(200), .is_interrupted = fail}),
              testing::MatchesRegex("(.*rank 2 aborted: it has ended with ValueError: loss is NaN, and still forwards "
                                    "what rank 0 sends to rank 3\n){3}"));
}

TEST(Joined, AWaitForAForwarderNamesTheRankThatBlocksIt) {
  std::atomic<bool> has_waited = false;
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const int rank = engine->info().rank;
    if (rank == 1) return;
    const auto channel = engine->open(0, {2, 3}, 1);
    Channel* const it[] = {channel.get()};
    if (rank == 3) {
      engine->post(Status::make("computing", 280));
      return wait_until(has_waited);
    }
    if (rank == 0) {
      engine->post(Status::make(full_operation, -1, 2));
      try {
        for (;;) {
          publish(*engine, *channel, allocate(*engine, 1'000, limit(), "test"), 1'000,
                  Deadline::after(std::chrono::seconds(3)), "test");
        }
      } catch (const Timeout& timeout) {
        EXPECT_THAT(timeout.what(), testing::MatchesRegex(".*; rank 2: forwarding, rank 3 has not received 1 of the "
                                                          "messages, waiting for rank 3; rank 3: computing step 280"));
      }
      has_waited = true;
      return;
    }
    engine->post(Status::make("receiving", -1, 0));
    std::string explained;
    while (!has_waited) {
      while (engine->try_receive(*channel).message) {
      }
      engine->wait({.receive = it}, Deadline::after(std::chrono::milliseconds(200)));
      if (!has_waited) explained = explain_wait(*engine, "test", 0, std::chrono::seconds(3));
    }
    EXPECT_THAT(explained, testing::HasSubstr("rank 3: computing step 280"));
  };
  EXPECT_EQ(run_ranks(4, {.options = {.leave_timeout = std::chrono::milliseconds(200)}}, body), "");
}

TEST(Joined, ALeavingRankReportsWhomItForwardsTo) {
  testing::internal::CaptureStderr();
  leave_early({.leave_timeout = std::chrono::seconds(3), .remind_after = std::chrono::milliseconds(1200)});
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::MatchesRegex("levada: rank 2 waited .* in leaving \\(it still forwards to rank 3\\) from rank 0; "
                            "rank 0: saving step 7.*; still waiting\n"));
}

TEST(Joined, ForwardsSeveralChannelsOnceMemoryIsAvailable) {
  constexpr std::size_t memory = 1 << 20;
  std::atomic<bool> is_full = false, is_blocked[2] = {false, false};
  const auto body = [&](const std::shared_ptr<Engine>& engine, Job&) {
    const int rank = engine->info().rank;
    const auto sent = [](int from) { return 100'000 + static_cast<std::size_t>(from) * 200'000; };
    if (rank < 2) {
      const auto channel = engine->open(rank, {2, 3}, 1);
      wait_until(is_full);
      // The second message has room once the forwarder has received the first.
      for (int i = 0; i < 2; ++i) send(*engine, *channel, sent(rank), i);
      is_blocked[rank] = true;
      for (int i = 2; i < 5; ++i) send(*engine, *channel, sent(rank), i);
      return;
    }
    const std::shared_ptr<Channel> channels[] = {engine->open(0, {2, 3}, 1), engine->open(1, {2, 3}, 1)};
    if (rank == 2) {
      const Block all = allocate(*engine, memory, limit(), "test");
      is_full = true;
      for (const auto& each : is_blocked) wait_until(each);
      for (const auto& each : channels) {
        if (engine->try_receive(*each).message) throw conformance::Failure("there was no memory to forward in");
      }
    }
    for (int i = 0; i < 5; ++i) {
      for (int from = 0; from < 2; ++from) {
        expect_message(receive(*engine, *channels[from], limit(), "test"), sent(from), i);
      }
    }
  };
  EXPECT_EQ(run_ranks(4, {.memory_bytes = memory}, body), "");
}

}  // namespace
}  // namespace levada::joined
