// Ranks that nobody launched together find each other by the name of an abstract Unix socket, which vanishes with rank
// 0 and is in no file system.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <stop_token>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/start.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const std::string& rendezvous) {
  Digest digest;
  digest.update(rendezvous);
  const std::string text = fmt::format("levada-{}-{}", ::getuid(), digest.hex());
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // not payload; abstract by its leading zero
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

UniqueFd make_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw EngineError(fmt::format("cannot meet other ranks ({})", system_error("socket", errno)));
  return socket;
}

bool same_user(const UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

/// Describes the process that listens at an address.
std::string holder_of(const Address& address) {
  const UniqueFd socket = make_socket();
  ucred holder{};
  socklen_t size = sizeof(holder);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0 ||
      ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0) {
    return "another process";
  }
  if (holder.uid != ::getuid()) return fmt::format("process {} of another user (uid {})", holder.pid, holder.uid);
  return fmt::format("process {}", holder.pid);
}

UniqueFd listen_at(const std::string& rendezvous) {
  const Address address = address_of(rendezvous);
  UniqueFd listener = make_socket();
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
    if (errno == EADDRINUSE) {
      throw EngineError(
          fmt::format("rank 0 cannot wait at the rendezvous '{}', where {} waits already; give each run a name of its "
                      "own (a port, LEVADA_RENDEZVOUS), or end the other one",
                      rendezvous, holder_of(address)));
    }
    throw EngineError(fmt::format("cannot wait at the rendezvous '{}' ({})", rendezvous, system_error("bind", errno)));
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) {
    throw EngineError(
        fmt::format("cannot wait at the rendezvous '{}' ({})", rendezvous, system_error("listen", errno)));
  }
  return listener;
}

/// Sends `cause` to that many ranks: those whose links are in `come`, and others that come before the deadline.
void reject_ranks(const UniqueFd& listener, std::size_t ranks, const StartFailure& cause, Deadline deadline,
                  std::vector<UniqueFd> come = {}, const std::stop_token& stop = {}) {
  for (const UniqueFd& link : come) send_frame(link, encode(cause), {}, deadline);
  while (come.size() < ranks && !wait_readable(std::span(&listener, 1), deadline, stop).empty()) {
    UniqueFd link(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!link && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return;
    if (!link || !same_user(link)) continue;
    send_frame(link, encode(cause), {}, deadline);
    come.push_back(std::move(link));  // kept open: what has not been read is lost with its end
  }
  // A rank that has read the cause closes its end.
  while (!come.empty() && !deadline.expired()) {
    const auto readable = wait_readable(come, deadline, stop);
    for (auto index = readable.rbegin(); index != readable.rend(); ++index) {
      const auto frame = receive_frame(come[*index]);
      if (!frame) come.erase(come.begin() + static_cast<std::ptrdiff_t>(*index));
    }
  }
}

/// Of a wait for ranks that are not there yet.
constexpr Duration first_reminder = std::chrono::seconds(5);

/// Rank 0 of a rendezvous. Connections are strangers until they have sent a hello.
class Rendezvous {
 public:
  Rendezvous(int size, std::string name)
      : name_(std::move(name)), hellos_(static_cast<std::size_t>(size)), sockets_(static_cast<std::size_t>(size)) {
    sockets_.push_back(listen_at(name_));
  }

  Connected gather(const Options& options, Deadline deadline) {
    const auto begin = Clock::now();
    Reminder reminder(first_reminder, options.remind);
    while (!missing().empty()) {
      const auto readable = wait_readable(sockets_, reminder.next(deadline), options.stop);
      reminder.write_if_due([&] {
        return fmt::format("rank 0 has waited {} at the rendezvous '{}' for rank(s) {}",
                           format_duration(Clock::now() - begin), name_, fmt::join(missing(), ", "));
      });
      if (readable.empty() && !deadline.expired()) continue;
      if (readable.empty()) {
        throw Timeout(
            fmt::format("rank 0 waited at the rendezvous '{}' for rank(s) {}; see whether they have been started "
                        "with the same rendezvous, or raise the timeout",
                        name_, fmt::join(missing(), ", ")));
      }
      // From the back: removing one does not shift those that are still to be read.
      for (auto index = readable.rbegin(); index != readable.rend(); ++index) {
        if (*index > size()) receive(*index);
        else if (*index == size()) accept();
        else throw_end(*index);
      }
    }
    sockets_.resize(size());
    return {std::move(sockets_), std::move(hellos_)};
  }

  /// To ranks that have come and to late ones, unless those have been waited for long enough or `stop` is requested.
  void send_failure(const StartFailure& cause, const std::stop_token& stop) noexcept {
    for (std::size_t rank = 1; rank < size(); ++rank) {
      try {
        if (sockets_[rank]) send_frame(sockets_[rank], encode(cause), {}, Deadline::now());
      } catch (const Error&) {  // it will see the link's end
      }
    }
    try {
      const auto late = missing().size();
      if (cause.kind == ErrorKind::timeout || late <= refused_) return;
      const auto strangers = sockets_.begin() + static_cast<std::ptrdiff_t>(size()) + 1;
      reject_ranks(sockets_[size()], late - refused_, cause, Deadline::after(time_for_late_ranks),
                   {std::make_move_iterator(strangers), std::make_move_iterator(sockets_.end())}, stop);
    } catch (const Error&) {  // it will find no rank 0
    }
  }

 private:
  std::size_t size() const { return hellos_.size(); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < size(); ++rank) {
      if (!sockets_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  void accept() {
    UniqueFd link(::accept4(sockets_[size()].get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (link) {
      if (same_user(link)) sockets_.push_back(std::move(link));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // It would be tried for ever. A connection that has ended is skipped.
      throw EngineError(fmt::format("rank 0 cannot let other ranks in ({}); raise the number of open files (ulimit -n)",
                                    system_error("accept4", errno)));
    }
  }

  /// What a stranger has sent; empty unless it is a rank.
  static std::optional<Frame> frame_of(const UniqueFd& link) try {
    auto frame = receive_frame(link);
    return frame && is_from_rank(frame->bytes) ? std::move(frame) : std::nullopt;
  } catch (const CorruptMessage&) {
    return {};
  } catch (const EngineError&) {
    return {};
  }

  void receive(std::size_t index) {
    UniqueFd link = std::move(sockets_[index]);
    sockets_.erase(sockets_.begin() + static_cast<std::ptrdiff_t>(index));
    const auto frame = frame_of(link);
    if (!frame) return;
    try {
      OpenedFrame opened = open_frame(frame->bytes);  // throws what ended the rank's start
      const Hello hello = decode_hello(opened.rest);
      admit(hello, std::move(link));
    } catch (const CorruptMessage&) {  // not a rank
    } catch (const Error&) {
      ++refused_;
      throw;
    }
  }

  /// Throws why a rank that has come does not stay: it sends nothing else here.
  [[noreturn]] void throw_end(std::size_t rank) const {
    if (const auto frame = receive_frame(sockets_[rank])) open_frame(frame->bytes);  // throws what it has sent
    throw PeerLost(static_cast<int>(rank),
                   fmt::format("rank {} (process {}) ended while the ranks were meeting; its own output may say why",
                               rank, hellos_[rank].process));
  }

  void admit(const Hello& hello, UniqueFd link) {
    const auto ranks = static_cast<int>(size());
    const bool fits = hello.size == ranks && hello.rank > 0 && hello.rank < ranks;
    const auto index = static_cast<std::size_t>(hello.rank);
    if (fits && !sockets_[index]) {
      sockets_[index] = std::move(link);
      hellos_[index] = hello;
      return;
    }
    const std::string why =
        fits ? fmt::format("rank {} has come to the rendezvous '{}' already; start each rank once", hello.rank, name_)
             : fmt::format("rank {} of {} comes to a rendezvous of {} ranks; start all ranks with the same size",
                           hello.rank, hello.size, ranks);
    send_frame(link, encode(StartFailure{.message = why}), {}, Deadline::now());
    if (!fits) throw EngineError(why);
  }

  std::string name_;
  std::size_t refused_ = 0;        ///< missing ranks that came, failed and will not come again
  std::vector<Hello> hellos_;      ///< by rank
  std::vector<UniqueFd> sockets_;  ///< the ranks that have arrived; the listener; strangers
};

/// A connection to the rendezvous, or empty where nobody listens there yet. Throws EngineError.
UniqueFd try_connect(const std::string& rendezvous) {
  const Address address = address_of(rendezvous);
  UniqueFd link = make_socket();
  if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) == 0) {
    if (same_user(link)) return link;
    throw EngineError(
        fmt::format("the rendezvous '{}' is held by {}; give it another name", rendezvous, holder_of(address)));
  }
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw EngineError(fmt::format("cannot go to the rendezvous '{}' ({})", rendezvous, system_error("connect", errno)));
}

Connected find_rank_zero(int rank, const std::string& rendezvous, const Options& options, Deadline deadline) {
  constexpr Duration pause = std::chrono::milliseconds(5);
  const auto begin = Clock::now();
  Reminder reminder(first_reminder, options.remind);
  while (true) {
    if (UniqueFd link = try_connect(rendezvous)) {
      Connected connected;
      connected.links.push_back(std::move(link));
      return connected;
    }
    throw_if_stopped(options.stop);
    if (deadline.expired()) {
      throw Timeout(
          fmt::format("rank {} found no rank 0 at the rendezvous '{}'; see whether rank 0 has been started with "
                      "the same rendezvous, or raise the timeout",
                      rank, rendezvous));
    }
    reminder.write_if_due([&] {
      return fmt::format("rank {} has waited {} at the rendezvous '{}' for rank 0", rank,
                         format_duration(Clock::now() - begin), rendezvous);
    });
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

Connected gather(int size, const std::string& rendezvous, const Options& options, Deadline deadline) {
  Rendezvous meeting(size, rendezvous);
  try {
    return meeting.gather(options, deadline);
  } catch (const Error& error) {
    meeting.send_failure(StartFailure::of(error), options.stop);
    throw;
  }
}

Connected find(int rank, const std::string& rendezvous, const Options& options, Deadline deadline) {
  try {
    return find_rank_zero(rank, rendezvous, options, deadline);
  } catch (const Error& error) {
    if (options.report) options.report(error.what());
    throw;
  }
}

void reject_ranks(int size, const std::string& rendezvous, const StartFailure& cause, Deadline deadline) {
  reject_ranks(listen_at(rendezvous), static_cast<std::size_t>(size) - 1, cause, deadline);
}

bool send_failure_to_rank_zero(int rank, const std::string& rendezvous, const StartFailure& cause,
                               Deadline deadline) noexcept try {
  const auto connected = find_rank_zero(rank, rendezvous, {}, deadline);
  return send_frame(connected.links.front(), encode(cause), {}, deadline);
} catch (const std::exception&) {
  return false;
}

}  // namespace levada::shm
