#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/memory_files_testing.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {
namespace {

constexpr std::size_t memory_bytes = 1 << 20;

/// Returns how many data files this process has mapped with these permissions, such as "rw-s".
std::ptrdiff_t mapped_data(const std::string& permissions) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(maps, line);) lines.push_back(line);
  return std::ranges::count_if(lines, [&](const std::string& line) {
    return line.find(" " + permissions + " ") != std::string::npos && line.find("levada-data") != std::string::npos;
  });
}

void expect_one_writable_mapping() {
  if (mapped_data("rw-s") != 1 || mapped_data("r--s") != 2) throw EngineError("unexpected mappings");
  const auto files = test::count_memory_files(memory_bytes);
  if (files.all != 3) throw EngineError("there are not three data files");
  if (files.writable != 0) throw EngineError("a data file can be mapped writable");
}

TEST(Start, MapsADataFileWritableOnlyOnItsOwnRank) {
  const auto body = [](const std::shared_ptr<Engine>&) { expect_one_writable_mapping(); };
  EXPECT_EQ(test::run_forked(3, body, {.memory_bytes = memory_bytes}), "");
}

/// Starts ranks, one of which first lowers one of its limits. Returns how they ended.
std::vector<test::Ending> start_with_limit(int limited, __rlimit_resource_t resource,
                                           const std::function<rlim_t()>& value) {
  constexpr int size = 2;
  auto links = make_links(size);
  test::ForkedRanks ranks(size, [&](int rank) {
    auto own = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    const rlimit limit{value(), value()};
    if (rank == limited) ::setrlimit(resource, &limit);
    static_cast<void>(join(rank, size, std::move(own), {.memory_bytes = std::size_t{1} << 30}));
  });
  links.clear();
  return ranks.wait();
}

TEST(Start, KeepsAllFilesBelowRankZerosFileSizeLimit) {
  for (const int limited : {0, 1}) {
    for (const auto& ending : start_with_limit(limited, RLIMIT_FSIZE, [] { return 64 << 20; })) {
      EXPECT_EQ(ending.error, "") << limited;
      EXPECT_EQ(ending.signal, 0) << limited;
    }
  }
}

// A sanitizer needs descriptors, too: UBSan checks a vptr by reading through a pipe.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Start, ReportsOnAllRanksThatOneIsOutOfDescriptors) {
  for (const int free : {0, 1, 3}) {
    const auto limit = [free] {
      const int next = ::dup(0);
      ::close(next);
      return static_cast<rlim_t>(next + free);
    };
    for (const auto& ending : start_with_limit(1, RLIMIT_NOFILE, limit)) {
      EXPECT_NE(ending.error.find("raise the number of open files"), std::string::npos) << ending.error;
    }
  }
}
#endif

TEST(Start, ThrowsTheFailureThatARankSentBeforeItClosedItsLink) {
  auto [zero, one] = make_socket_pair();
  StartLink peer(std::move(one), LinkSide::caller, std::nullopt);
  ASSERT_TRUE(peer.send(encode(Hello{.rank = 1, .size = 2}), {}, Deadline::now()));
  ASSERT_TRUE(peer.send(encode(StartFailure{.message = "no memory on rank 1"}), {}, Deadline::now()));
  peer = StartLink();
  std::vector<UniqueFd> links(2);
  links[1] = std::move(zero);
  try {
    static_cast<void>(join(0, 2, std::move(links), {.memory_bytes = memory_bytes}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no memory on rank 1");
  }
}

/// Rank 0 of a start, played by the test, and rank 1.
class PlayedLeader {
 public:
  explicit PlayedLeader(int size) : size_(size), memory_(static_cast<std::size_t>(size), memory_bytes) {
    auto [mine, others] = make_socket_pair();
    links_.push_back(std::move(others));
    link_ = StartLink(std::move(mine), LinkSide::listener, std::nullopt);
    control_ = make_memory_file("control", Control::bytes(size));
    own_ = make_memory_file("data", memory_bytes);
    data_ = reopen_read_only(own_);
    send({control_.get(), own_.get()});
  }

  void send(const std::vector<int>& fds) { ASSERT_TRUE(link_.send(encode_plan(memory_), fds, Deadline::now())); }
  void send_data(std::size_t count) { send(std::vector<int>(count, data_.get())); }
  void send_go() { ASSERT_TRUE(link_.send(encode(FrameKind::go), {}, Deadline::now())); }
  /// Returns the error of rank 1's join().
  std::string join_rank_one() {
    try {
      static_cast<void>(join(1, size_, std::move(links_), {.timeout = std::chrono::milliseconds(50)}));
    } catch (const Error& error) {
      return error.what();
    }
    return "started";
  }

 private:
  int size_;
  std::vector<std::uint64_t> memory_;
  StartLink link_;
  UniqueFd control_, own_, data_;
  std::vector<UniqueFd> links_;
};

TEST(Start, ReceivesMoreFilesThanFitIntoOneFrame) {
  constexpr std::size_t size = max_fds + 50;
  PlayedLeader leader(size);
  leader.send_data(max_fds);
  leader.send_data(size - max_fds);
  leader.send_go();
  EXPECT_EQ(leader.join_rank_one(), "started");
}

TEST(Start, SendsMoreFilesThanFitIntoOneFrame) {
  constexpr int size = static_cast<int>(max_fds) + 1;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<UniqueFd> links(1);
  std::vector<StartLink> peers(1);
  for (int rank = 1; rank < size; ++rank) {
    auto [zero, other] = make_socket_pair();
    links.push_back(std::move(zero));
    peers.emplace_back(std::move(other), LinkSide::caller, std::nullopt);
    ASSERT_TRUE(peers.back().send(encode(Hello{.rank = rank, .size = size}), {}, Deadline::now()));
  }
  std::thread reader([&peers] {
    std::vector<std::size_t> files(peers.size());
    for (std::size_t ready = 1; ready < peers.size();) {
      const auto readable = wait_readable(descriptors_of(peers), Deadline::after(std::chrono::seconds(30)));
      if (readable.empty()) return;
      for (const std::size_t rank : readable) {
        const auto received = peers[rank].receive();
        if (received.kind == StartLink::Received::Kind::closed) return;
        files[rank] += received.frame.fds.size();
        if (files[rank] < peers.size() + 2) continue;
        peers[rank].send(encode(FrameKind::ready), {}, Deadline::now());
        ++ready;
      }
    }
  });
  EXPECT_NO_THROW(join(0, size, std::move(links), {.memory_bytes = memory_bytes}));
  reader.join();
}

TEST(Start, RejectsAMismatchedNumberOfFiles) {
  for (const std::size_t wrong : {0, 4}) {
    PlayedLeader leader(3);
    leader.send_data(wrong);
    EXPECT_NE(leader.join_rank_one().find("rank 0 did not send the "), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace levada::shm
