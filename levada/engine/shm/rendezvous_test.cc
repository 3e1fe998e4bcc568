#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {
namespace {

MeetingPlace unique_place(const char* what) {
  return {fmt::format("test-{}-{}", what, ::getpid()), derive_secret({}, what)};
}

const Options options{.memory_bytes = 1 << 20, .timeout = std::chrono::seconds(30)};
const Options hasty{.memory_bytes = 1 << 20, .timeout = std::chrono::milliseconds(1500)};

TEST(Rendezvous, ConnectsRanksThatStartInAnyOrder) {
  for (const int late : {0, 1, 3}) {
    const auto place = unique_place("order");
    test::ForkedRanks ranks(4, [&](int rank) {
      if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const auto engine = meet(rank, 4, place, options);
      const auto all =
          agree(*engine, as_bytes(std::to_string(rank)), Deadline::after(std::chrono::seconds(30)), "test");
      if (as_text(all[3]) != "3") throw EngineError("the ranks are mixed up");
    });
    for (const auto& ending : ranks.wait()) EXPECT_EQ(ending.error, "");
  }
}

TEST(Rendezvous, IgnoresAStaleErrno) {
  const auto place = unique_place("errno");
  test::ForkedRanks ranks(3, [&](int rank) {
    errno = ENOMEM;
    static_cast<void>(meet(rank, 3, place, options));
  });
  for (const auto& ending : ranks.wait()) EXPECT_EQ(ending.error, "");
}

TEST(Rendezvous, OfOneRankSucceedsImmediately) {
  EXPECT_EQ(meet(0, 1, unique_place("one"), options)->info().size, 1);
}

TEST(Rendezvous, NamesTheMissingRanks) {
  const auto place = unique_place("missing");
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 3, place, hasty)); });
  const auto endings = ranks.wait();
  EXPECT_NE(endings[0].error.find("rank(s) 2"), std::string::npos) << endings[0].error;
  EXPECT_NE(endings[1].error.find("rank(s) 2"), std::string::npos) << endings[1].error;
}

TEST(Rendezvous, ReportsThatRankZeroIsMissing) {
  try {
    static_cast<void>(meet(1, 2, unique_place("nobody"), hasty));
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("no rank 0"), std::string::npos) << error.what();
  }
}

TEST(Rendezvous, CanBeReusedAfterARankStops) {
  const auto place = unique_place("stop");
  for (const int rank : {0, 1}) {
    std::stop_source stop;
    Options stoppable = options;
    stoppable.stop = stop.get_token();
    const auto begin = Clock::now();
    const std::jthread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      stop.request_stop();
    });
    try {
      static_cast<void>(meet(rank, 2, place, stoppable));
      FAIL();
    } catch (const EngineError& error) {
      EXPECT_NE(std::string(error.what()).find("interrupted"), std::string::npos) << error.what();
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
  }
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 2, place, options)); });
  for (const auto& ending : ranks.wait()) EXPECT_EQ(ending.error, "");
}

TEST(Rendezvous, ReportsAStoppedRankToAllWaitingRanks) {
  const auto place = unique_place("stopped");
  test::ForkedRanks ranks(3, [&](int rank) {
    std::stop_source stop;
    Options stoppable = options;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(4));
    if (rank == 1) stoppable.stop = stop.get_token();
    const std::jthread stopper([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      stop.request_stop();
    });
    static_cast<void>(meet(rank, 3, place, stoppable));
  });
  for (const auto& ending : ranks.wait()) {
    EXPECT_NE(ending.error.find("was interrupted while the ranks were starting"), ending.error.npos) << ending.error;
  }
}

TEST(Rendezvous, RejectsASecondRankZero) {
  const auto place = unique_place("two");
  test::ForkedRanks ranks(2, [&](int) { static_cast<void>(meet(0, 2, place, hasty)); });
  const auto endings = ranks.wait();
  const bool first = endings[0].error.find("already waits") != std::string::npos;
  const bool second = endings[1].error.find("already waits") != std::string::npos;
  EXPECT_TRUE(first || second) << endings[0].error << "\n" << endings[1].error;
}

TEST(Rendezvous, RejectsADuplicateRankAndContinues) {
  const auto place = unique_place("twice");
  test::ForkedRanks ranks(4, [&](int process) {
    const int rank = process == 3 ? 1 : process;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    static_cast<void>(meet(rank, 3, place, options));
  });
  const auto endings = ranks.wait();
  EXPECT_EQ(endings[0].error, "");
  EXPECT_EQ(endings[2].error, "");
  const std::string refused = endings[1].error + endings[3].error;
  EXPECT_NE(refused.find("already"), std::string::npos) << refused;
}

TEST(Rendezvous, RejectsAMismatchedSize) {
  const auto place = unique_place("size");
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 2 + rank, place, hasty)); });
  for (const auto& ending : ranks.wait()) {
    EXPECT_NE(ending.error.find("same size"), std::string::npos) << ending.error;
  }
}

TEST(Rendezvous, NamesARankThatDiesWhileWaiting) {
  const auto place = unique_place("dies");
  test::ForkedRanks ranks(2, [&](int rank) {
    try {
      static_cast<void>(meet(rank, 3, place, options));
    } catch (const PeerLost& lost) {
      throw EngineError(fmt::format("lost {}", lost.rank()));
    }
  });
  std::this_thread::sleep_for(std::chrono::seconds(3));
  ranks.kill(1);
  EXPECT_EQ(ranks.wait()[0].error, "lost 1");
}

/// The abstract socket of a meeting place, for a process that knows the secret or has read its name in /proc.
class Door {
 public:
  explicit Door(const MeetingPlace& place) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const auto text = "levada-" + to_hex(prove(derive_secret(place.secret, "levada name"), as_bytes(place.name)));
    name_.sun_family = AF_UNIX;
    std::memcpy(name_.sun_path + 1, text.data(), text.size());
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  /// Returns a socket that connects to it as soon as rank 0 waits at it.
  UniqueFd connect() && {
    const auto deadline = Deadline::after(std::chrono::seconds(30));
    while (::connect(socket_.get(), name(), size_) != 0 && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::move(socket_);
  }
  /// Returns a socket of that user that listens at it.
  UniqueFd listen_as(uid_t user) && {
    const uid_t own = ::geteuid();
    const bool listens =
        ::seteuid(user) == 0 && ::bind(socket_.get(), name(), size_) == 0 && ::listen(socket_.get(), 8) == 0;
    const bool is_back = ::seteuid(own) == 0;
    EXPECT_TRUE(listens && is_back);
    return std::move(socket_);
  }

 private:
  const sockaddr* name() const { return reinterpret_cast<const sockaddr*>(&name_); }

  UniqueFd socket_;
  sockaddr_un name_{};
  socklen_t size_ = 0;
};

/// Returns frames that a process may send if it has read the place's name in /proc and knows this code, but not the
/// secret.
std::vector<Bytes> frames_of_strangers() {
  const Secret guess = derive_secret({}, "guess");
  const LinkProof guessing(LinkSide::caller, guess);
  const LinkProof newer(LinkSide::caller, guess, {protocol_number + 1, "99.0.0"});
  const auto bytes_of = [](ByteView view) { return Bytes(view.begin(), view.end()); };
  return {Bytes(),
          bytes_of(as_bytes("hi")),
          Bytes(64),
          Bytes(200),
          Bytes(100 << 10),
          bytes_of(guessing.greeting()),
          bytes_of(newer.greeting()),
          encode(Hello{.rank = 1, .size = 2}),
          encode(Hello{.rank = 1, .size = 3}),
          encode(StartFailure{.message = "stop"})};
}

TEST(Rendezvous, SurvivesStrangersOfTheSameUser) {
  const auto place = unique_place("strangers");
  test::ForkedRanks first(1, [&](int) { static_cast<void>(meet(0, 2, place, options)); });
  std::vector<UniqueFd> strangers;
  for (const Bytes& frame : frames_of_strangers()) {
    strangers.push_back(Door(place).connect());
    ::send(strangers.back().get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  }
  test::ForkedRanks second(1, [&](int) { static_cast<void>(meet(1, 2, place, options)); });
  EXPECT_EQ(first.wait()[0].error, "");
  EXPECT_EQ(second.wait()[0].error, "");
}

TEST(Rendezvous, RejectsAReplayedGreeting) {
  const auto place = unique_place("repeats");
  test::ForkedRanks first(1, [&](int) { static_cast<void>(meet(0, 2, place, options)); });
  const UniqueFd stranger = Door(place).connect();
  const LinkProof recorded(LinkSide::caller, place.secret);
  ASSERT_TRUE(send_frame(stranger, recorded.greeting(), {}, Deadline::now()));
  ASSERT_TRUE(send_frame(stranger, encode(Hello{.rank = 1, .size = 2}), {}, Deadline::now()));
  const auto greeting = receive_frame(stranger);
  ASSERT_TRUE(greeting);
  EXPECT_EQ(greeting->bytes.size(), sizeof(Greeting));
  EXPECT_FALSE(receive_frame(stranger)) << "rank 0 closes the connection";
  test::ForkedRanks second(1, [&](int) { static_cast<void>(meet(1, 2, place, options)); });
  EXPECT_EQ(first.wait()[0].error, "");
  EXPECT_EQ(second.wait()[0].error, "");
}

TEST(Rendezvous, AcceptsARankAmongAThousandSilentStrangers) {
  const auto place = unique_place("flood");
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  test::ForkedRanks first(1, [&](int) { static_cast<void>(meet(0, 2, place, options)); });
  std::vector<UniqueFd> strangers;
  while (strangers.size() < 1000) strangers.push_back(Door(place).connect());
  test::ForkedRanks second(1, [&](int) { static_cast<void>(meet(1, 2, place, options)); });
  EXPECT_EQ(first.wait()[0].error, "");
  EXPECT_EQ(second.wait()[0].error, "");
}

TEST(Rendezvous, RejectsARankZeroThatDoesNotKnowTheSecret) {
  const auto place = unique_place("squatter");
  const UniqueFd theirs = Door(place).listen_as(::geteuid());
  test::ForkedRanks ranks(1, [&](int) { static_cast<void>(meet(1, 2, place, hasty)); });
  const auto link = UniqueFd(::accept(theirs.get(), nullptr, nullptr));
  ASSERT_TRUE(
      send_frame(link, LinkProof(LinkSide::listener, derive_secret({}, "guess")).greeting(), {}, Deadline::now()));
  const auto error = ranks.wait()[0].error;
  EXPECT_NE(error.find(fmt::format("process {} listens there but has not proven that it is rank 0", ::getpid())),
            std::string::npos)
      << error;
}

TEST(Rendezvous, ReportsBothReleasesOnEveryRankIfTheyDiffer) {
  const auto place = unique_place("release");
  test::ForkedRanks ranks(2, [&](int rank) { static_cast<void>(meet(rank, 3, place, options)); });
  const UniqueFd newer = Door(place).connect();
  ASSERT_TRUE(send_frame(newer, LinkProof(LinkSide::caller, place.secret, {protocol_number + 1, "99.0.0"}).greeting(),
                         {}, Deadline::now()));
  for (const auto& ending : ranks.wait()) {
    EXPECT_NE(ending.error.find("another rank of this host runs Levada 99.0.0, but rank 0 runs"), std::string::npos)
        << ending.error;
  }
}

TEST(Rendezvous, NamesTheUserWhoHoldsItsName) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";  // skipped without: root
  const auto place = unique_place("others");
  const UniqueFd theirs = Door(place).listen_as(12345);
  for (int rank = 0; rank < 2; ++rank) {
    test::ForkedRanks ranks(1, [&](int) { static_cast<void>(meet(rank, 2, place, options)); });
    const auto error = ranks.wait()[0].error;
    EXPECT_NE(error.find("of another user (uid 12345)"), std::string::npos) << "rank " << rank << ": " << error;
  }
}

// A sanitizer needs descriptors, too: UBSan checks a vptr by reading through a pipe.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Rendezvous, FailsWithARemedyIfRankZeroIsOutOfDescriptors) {
  const auto place = unique_place("descriptors");
  test::ForkedRanks ranks(2, [&](int rank) {
    if (rank == 0) {
      const int next = ::dup(0);
      ::close(next);
      const rlimit limit{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};  // for the listener only
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    static_cast<void>(meet(rank, 2, place, options));
  });
  const auto endings = ranks.wait();
  EXPECT_NE(endings[0].error.find("raise the number of open files"), std::string::npos) << endings[0].error;
  EXPECT_NE(endings[1].error, "");
}
#endif

TEST(Rendezvous, NotifiesAllRanksThatOneRefusesToStart) {
  for (const int refusing : {0, 2}) {
    const auto place = unique_place("refuses");
    test::ForkedRanks ranks(3, [&](int rank) {
      if (rank != refusing) {
        static_cast<void>(meet(rank, 3, place, options));
      } else if (refuse_start(rank, 3, place, ErrorKind::invalid_argument, "there is no option --mseh") !=
                 (rank != 0)) {
        throw EngineError("the wrong rank has to report it");
      }
    });
    const auto endings = ranks.wait();
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& error = endings[static_cast<std::size_t>(rank)].error;
      EXPECT_EQ(error, rank == refusing ? "" : "there is no option --mseh") << refusing << " refuses, rank " << rank;
    }
  }
}

TEST(Rendezvous, NotifiesALateRankThatOneHasAlreadyLeft) {
  using Leave = std::function<void(const MeetingPlace&)>;
  const std::map<std::string, Leave> leavers = {
      {"there is no option --mseh",
       [](const MeetingPlace& place) {
         EXPECT_TRUE(refuse_start(2, 3, place, ErrorKind::invalid_argument, "there is no option --mseh"));
       }},
      {"start all ranks with the same size",
       [](const MeetingPlace& place) { EXPECT_THROW(meet(2, 4, place, options), EngineError); }},
  };
  for (const auto& [cause, leave] : leavers) {
    const auto place = unique_place("left");
    const UniqueFd gone(::eventfd(0, EFD_CLOEXEC));
    test::ForkedRanks ranks(3, [&](int rank) {
      if (rank == 2) {
        leave(place);
        ::eventfd_write(gone.get(), 1);
        return;
      }
      eventfd_t count = 0;
      if (rank == 1) ::eventfd_read(gone.get(), &count);
      static_cast<void>(meet(rank, 3, place, options));
    });
    const auto endings = ranks.wait();
    for (const int rank : {0, 1}) {
      const std::string& error = endings[static_cast<std::size_t>(rank)].error;
      EXPECT_NE(error.find(cause), error.npos) << "rank " << rank << ": " << error;
    }
  }
}

TEST(Rendezvous, PeriodicallyReportsTheMissingRanks) {
  const auto place = unique_place("reminder");
  for (const int rank : {0, 1}) {
    std::string said;
    Options patient{.memory_bytes = 1 << 20, .timeout = std::chrono::seconds(9)};
    patient.remind = [&](const std::string& sentence) { said += sentence; };
    EXPECT_THROW(static_cast<void>(meet(rank, 2, place, patient)), Timeout);
    EXPECT_NE(said.find(rank == 0 ? "for rank(s) 1; still waiting" : "for rank 0; still waiting"), std::string::npos)
        << said;
    EXPECT_NE(said.find(fmt::format("rank {} has waited ", rank)), std::string::npos) << said;
  }
}

TEST(Rendezvous, ReportsAFailureThatRankZeroCannotSee) {
  std::string said;
  Options impatient = hasty;
  impatient.report = [&](const std::string& sentence) { said += sentence; };
  EXPECT_THROW(static_cast<void>(meet(1, 2, unique_place("alone"), impatient)), Timeout);
  EXPECT_NE(said.find("rank 1 found no rank 0"), std::string::npos) << said;
}

}  // namespace
}  // namespace levada::shm
