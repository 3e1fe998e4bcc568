#include "levada/cli/measure.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/threads.h"
#include "levada/base/unique_fd.h"

namespace levada::cli {
namespace {

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

constexpr std::uint32_t over = UINT32_MAX;

/// Answers every odd turn with the next even one.
void answer(std::atomic<std::uint32_t>& turn) {
  for (std::uint32_t seen = 0; seen != over;) {
    turn.wait(seen);
    seen = turn.load();
    if (seen % 2 == 1 && seen != over) turn.compare_exchange_strong(seen, seen + 1);
    turn.notify_one();
    if (seen != over) seen += seen % 2;
  }
}

/// Returns half of the median, in microseconds.
double half_of_median(std::vector<double>& trips) {
  const auto middle = trips.begin() + static_cast<std::ptrdiff_t>(trips.size() / 2);
  std::nth_element(trips.begin(), middle, trips.end());
  return *middle / 2 * 1e6;
}

struct Connection {
  UniqueFd near, far;
};

/// Opens both ends of a TCP connection over loopback, with Nagle's algorithm disabled.
std::optional<Connection> connect_over_loopback() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Connection ends{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0 || ::connect(ends.near.get(), generic, length) != 0) {
    return {};
  }
  ends.far = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const int on = 1;
  for (const UniqueFd* end : {&ends.near, &ends.far}) {
    if (::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return {};
  }
  return ends;
}

using SmallMessage = std::array<char, 64>;

bool send_message(int fd, const SmallMessage& message) {
  return ::send(fd, message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

/// Returns false at the end of the connection.
bool receive_message(int fd, SmallMessage& message) {
  return ::recv(fd, message.data(), message.size(), MSG_WAITALL) == static_cast<ssize_t>(message.size());
}

}  // namespace

double measure_copy(int threads) {
  const std::size_t bytes = (std::size_t{64} << 20) / static_cast<std::size_t>(std::min(threads, 4));  // per thread
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(bytes, 'a'));
  auto to = from;
  const auto copy = [&](std::size_t thread) {
    std::memcpy(to[thread].data(), from[thread].data(), bytes);
    asm volatile("" : : "r"(to[thread].data()) : "memory");
  };
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const auto begin = Clock::now();
    ThreadGroup others;
    for (std::size_t thread = 1; thread < from.size(); ++thread) {
      others.start("measuring", [&copy, thread] { copy(thread); });
    }
    copy(0);
    others.join();
    best = std::max(best, static_cast<double>(bytes * from.size()) / seconds_of(Clock::now() - begin));
  }
  return best / 1e9;
}

double measure_wake() {
  std::atomic<std::uint32_t> turn{0};
  std::thread other = start_thread("measuring", [&turn] { answer(turn); });
  std::vector<double> trips;
  const auto deadline = Deadline::after(std::chrono::milliseconds(200));
  for (std::uint32_t round = 0; round < 2000 && !deadline.expired(); ++round) {
    const auto begin = Clock::now();
    turn.store(2 * round + 1);
    turn.notify_one();
    turn.wait(2 * round + 1);
    trips.push_back(seconds_of(Clock::now() - begin));
  }
  turn.store(over);
  turn.notify_one();
  other.join();
  return half_of_median(trips);
}

std::optional<double> measure_message() {
  auto ends = connect_over_loopback();
  if (!ends) return {};
  std::thread other = start_thread("measuring", [fd = ends->far.get()] {
    for (SmallMessage message; receive_message(fd, message) && send_message(fd, message);) continue;
  });
  std::vector<double> trips;
  SmallMessage message{};
  const auto deadline = Deadline::after(std::chrono::milliseconds(200));
  while (trips.size() < 2000 && !deadline.expired()) {
    const auto begin = Clock::now();
    if (!send_message(ends->near.get(), message) || !receive_message(ends->near.get(), message)) break;
    trips.push_back(seconds_of(Clock::now() - begin));
  }
  ::shutdown(ends->near.get(), SHUT_RDWR);
  other.join();
  return trips.empty() ? std::nullopt : std::optional(half_of_median(trips));
}

}  // namespace levada::cli
