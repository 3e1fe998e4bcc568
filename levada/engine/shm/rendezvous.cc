// Ranks that were not launched together find each other by the name of an abstract Unix socket, which is in no file
// system and vanishes when rank 0 ends. Every process in the network namespace can read the name and connect. A
// connection therefore counts as a stranger's until its frames prove that the other end knows the job's secret.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/open_files.h"
#include "levada/base/secret.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/start.h"
#include "levada/engine/shm/start_frames.h"
#include "levada/engine/shm/start_link.h"

namespace levada::shm {
namespace {

using Kind = StartLink::Received::Kind;

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const MeetingPlace& place) {
  const Proof proof = prove(derive_secret(place.secret, "levada name"), as_bytes(place.name));
  const std::string text = "levada-" + to_hex(proof);
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

/// Returns the process at the other end of a connection: the one that connected, or the one that listens.
std::optional<ucred> holder_of(const UniqueFd& socket) {
  ucred holder{};
  socklen_t size = sizeof(holder);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0) return {};
  return holder;
}

/// Returns whether a process certainly belongs to another user. An equal uid proves nothing, because the process may be
/// in another user namespace.
bool is_another_users(const std::optional<ucred>& process) {
  return process && process->uid != ::getuid() && process->uid != overflow_uid();
}

std::string describe(const std::optional<ucred>& process) {
  if (!process) return "another process";
  if (!is_another_users(process)) return fmt::format("process {}", process->pid);
  return fmt::format("process {} of another user (uid {})", process->pid, process->uid);
}

/// Returns a connection to the process that listens at the address, or an empty one if there is none.
UniqueFd connect_to(const Address& address) {
  UniqueFd link = make_socket();
  if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) == 0) return link;
  return {};
}

UniqueFd listen_at(const MeetingPlace& place) {
  const Address address = address_of(place);
  UniqueFd listener = make_socket();
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
    if (errno == EADDRINUSE) {
      const UniqueFd other = connect_to(address);
      throw EngineError(
          fmt::format("rank 0 cannot wait at the rendezvous '{}', where {} already waits; give each run a "
                      "different name (a port, LEVADA_RENDEZVOUS), or end the other run",
                      place.name, describe(other ? holder_of(other) : std::nullopt)));
    }
    throw EngineError(fmt::format("cannot wait at the rendezvous '{}' ({})", place.name, system_error("bind", errno)));
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) {
    throw EngineError(
        fmt::format("cannot wait at the rendezvous '{}' ({})", place.name, system_error("listen", errno)));
  }
  return listener;
}

/// First reminder in a wait for ranks that have not arrived yet.
constexpr Duration first_reminder = std::chrono::seconds(5);

/// Connections to rank 0 that have not yet identified their rank. Their number and lifetime are bounded, so that
/// strangers cannot block a start.
class Visitors {
 public:
  explicit Visitors(const MeetingPlace& place) : place_(place), listener_(listen_at(place)) {}

  /// Returns the descriptors of the listener and then of the visitors, for wait_readable().
  std::vector<int> descriptors() const {
    std::vector<int> fds{listener_.get()};
    for (const Visitor& each : visitors_) fds.push_back(each.link.fd());
    return fds;
  }
  /// Returns when to call drop_late() next.
  Deadline next(Deadline deadline) const {
    const auto oldest = std::ranges::find_if(visitors_, is_stranger);
    return oldest != visitors_.end() && oldest->until.at() < deadline.at() ? oldest->until : deadline;
  }
  void drop_late() {
    std::erase_if(visitors_, [](const Visitor& each) { return is_stranger(each) && each.until.expired(); });
  }
  using OnGreeting = std::function<void(StartLink&)>;
  using OnFrame = std::function<bool(StartLink&, Frame)>;
  /// Receives from some of descriptors(), given by their indexes in ascending order. Calls `on_greeting` for a rank
  /// that has greeted, and `on_frame` for each later frame. The visitor is removed if `on_frame` returns true.
  void receive(std::span<const std::size_t> readable, const OnGreeting& on_greeting, const OnFrame& on_frame) {
    // Iterate from the back, so that removing a visitor does not shift those that have yet to be read.
    for (auto index = readable.rbegin(); index != readable.rend(); ++index) {
      if (*index == 0) accept();
      else receive(*index - 1, on_greeting, on_frame);
    }
  }
  /// Calls `use` for each visitor that has greeted.
  void for_each_greeted(const std::function<void(StartLink&)>& use) {
    for (Visitor& each : visitors_) {
      if (!is_stranger(each)) use(each.link);
    }
  }
  bool has_greeted() const { return !std::ranges::all_of(visitors_, is_stranger); }

 private:
  struct Visitor {
    StartLink link;
    Deadline until;
  };
  static bool is_stranger(const Visitor& visitor) { return !visitor.link.is_greeted(); }

  /// Ranks greet within milliseconds.
  static constexpr Duration patience = std::chrono::seconds(10);
  static constexpr std::size_t max_visitors = 512;

  void accept() {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      if (is_another_users(holder_of(socket))) return;
      if (visitors_.size() == max_visitors) drop_one();
      visitors_.push_back({StartLink(std::move(socket), LinkSide::listener, place_.secret), Deadline::after(patience)});
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // Drop a visitor; otherwise accept would be retried forever. Ignore errors of a connection that has ended.
      const int error = errno;
      if (drop_one()) return;
      throw EngineError(fmt::format("rank 0 cannot accept other ranks ({}); raise the number of open files (ulimit -n)",
                                    system_error("accept4", error)));
    }
  }

  /// Makes room by dropping the oldest visitor that has not greeted. Returns whether there was one.
  bool drop_one() {
    const auto oldest = std::ranges::find_if(visitors_, is_stranger);
    if (oldest == visitors_.end()) return false;
    visitors_.erase(oldest);
    return true;
  }

  void receive(std::size_t index, const OnGreeting& on_greeting, const OnFrame& on_frame) {
    StartLink::Received received = received_from(visitors_[index].link);
    if (received.kind == Kind::greeting) return on_greeting(visitors_[index].link);
    // Remove it first, so that a visitor whose frame makes `on_frame` throw is also removed.
    Visitor visitor = std::move(visitors_[index]);
    visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(index));
    if (received.kind != Kind::frame || on_frame(visitor.link, std::move(received.frame))) return;
    visitors_.push_back(std::move(visitor));
  }

  /// Receives from a visitor. Throws EngineError only if it is a rank of another release.
  static StartLink::Received received_from(StartLink& link) try { return link.receive(); } catch (const Error&) {
    if (link.is_greeted()) throw;
    return {Kind::stranger};
  }

  const MeetingPlace& place_;
  UniqueFd listener_;
  std::vector<Visitor> visitors_;  ///< in order of arrival
};

/// Rank 0's side of a meeting.
class Rendezvous {
 public:
  Rendezvous(int size, const MeetingPlace& place)
      : name_(place.name),
        visitors_(place),
        hellos_(static_cast<std::size_t>(size)),
        links_(static_cast<std::size_t>(size)) {}

  StartConnections gather(const Options& options, Deadline deadline) {
    reserve_open_files(num_files_to_start(static_cast<int>(size())), "rank 0");
    const auto begin = Clock::now();
    Reminder reminder(first_reminder, options.remind);
    while (!missing().empty()) {
      const auto readable = wait(reminder.next(deadline), options.stop);
      reminder.write_if_due([&] {
        return fmt::format("rank 0 has waited {} at the rendezvous '{}' for rank(s) {}",
                           format_duration(Clock::now() - begin), name_, fmt::join(missing(), ", "));
      });
      if (readable.empty() && deadline.expired()) {
        throw Timeout(
            fmt::format("rank 0 waited at the rendezvous '{}' for rank(s) {}; check that they have been started "
                        "with the same rendezvous, or raise the timeout",
                        name_, fmt::join(missing(), ", ")));
      }
      receive(readable);
    }
    return {std::move(links_), std::move(hellos_)};
  }

  /// Sends `cause` to the ranks that have arrived and to late ones, until time_for_late_ranks has passed or `stop` is
  /// requested.
  void send_failure(const StartFailure& cause, const std::stop_token& stop) noexcept {
    for (StartLink& link : links_) {
      try {
        if (link) link.send(encode(cause), {}, Deadline::now());
      } catch (const Error&) {  // the rank will see its link close
      }
    }
    try {
      if (cause.kind != ErrorKind::timeout) reject(cause, Deadline::after(time_for_late_ranks), stop);
    } catch (const Error&) {  // the rank will find no rank 0
    }
  }

  /// Sends `cause` to the missing ranks as they arrive, and waits until they have read it.
  void reject(const StartFailure& cause, Deadline deadline, const std::stop_token& stop = {}) {
    std::size_t late = missing().size() - std::min(missing().size(), refused_);
    const auto notify = [&](StartLink& link) {
      link.send(encode(cause), {}, deadline, stop);
      late -= late > 0 ? 1 : 0;
    };
    if (late > 0) visitors_.for_each_greeted(notify);
    // A rank that has read the cause closes its end. Keep the link until then, because closing it loses unread data.
    while ((late > 0 || visitors_.has_greeted()) && !deadline.expired()) {
      const auto readable = wait_readable(visitors_.descriptors(), visitors_.next(deadline), stop);
      visitors_.drop_late();
      visitors_.receive(readable, notify, [](StartLink&, const Frame&) { return false; });
    }
  }

 private:
  std::size_t size() const { return hellos_.size(); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < size(); ++rank) {
      if (!links_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  /// Returns the indexes of the readable links of ranks, followed by those of readable visitors.
  std::vector<std::size_t> wait(Deadline deadline, const std::stop_token& stop) {
    std::vector<int> fds = descriptors_of(links_);
    std::ranges::copy(visitors_.descriptors(), std::back_inserter(fds));  // not payload: descriptors
    auto readable = wait_readable(fds, visitors_.next(deadline), stop);
    visitors_.drop_late();
    return readable;
  }

  void receive(std::span<const std::size_t> readable) {
    const auto visitors = std::ranges::lower_bound(readable, size());
    if (visitors != readable.begin()) throw_end(readable.front());
    std::vector<std::size_t> indexes;
    for (const std::size_t index : readable) indexes.push_back(index - size());
    visitors_.receive(
        indexes, [](StartLink&) {},
        [&](StartLink& link, const Frame& frame) {
          admit(link, frame);
          return true;
        });
  }

  void admit(StartLink& link, const Frame& frame) try {
    OpenedFrame opened = open_frame(frame.bytes);  // throws the failure that ended the rank's start
    admit(decode_hello(opened.rest), link);
  } catch (const Error&) {
    ++refused_;
    throw;
  }

  /// Throws the failure that an arrived rank has sent, or PeerLost. Until the start, an arrived rank sends nothing
  /// else.
  [[noreturn]] void throw_end(std::size_t rank) {
    links_[rank].raise_failure();
    throw PeerLost(static_cast<int>(rank),
                   fmt::format("rank {} (process {}) ended while the ranks were meeting; its own output may say why",
                               rank, hellos_[rank].process));
  }

  void admit(const Hello& hello, StartLink& link) {
    const auto ranks = static_cast<int>(size());
    const bool fits = hello.size == ranks && hello.rank > 0 && hello.rank < ranks;
    const auto index = static_cast<std::size_t>(hello.rank);
    if (fits && !links_[index]) {
      links_[index] = std::move(link);
      hellos_[index] = hello;
      return;
    }
    const std::string why =
        fits ? fmt::format("rank {} has already joined the rendezvous '{}'; start each rank once", hello.rank, name_)
             : fmt::format("rank {} of {} joined a rendezvous of {} ranks; start all ranks with the same size",
                           hello.rank, hello.size, ranks);
    link.send(encode(StartFailure{.message = why}), {}, Deadline::now());
    if (!fits) throw EngineError(why);
  }

  std::string name_;
  Visitors visitors_;
  std::size_t refused_ = 0;       ///< missing ranks that arrived, failed and will not return
  std::vector<Hello> hellos_;     ///< by rank
  std::vector<StartLink> links_;  ///< by rank; only those that have arrived
};

/// Returns a connection to the rendezvous, or an empty one if no process listens yet. Throws EngineError.
UniqueFd try_connect(const MeetingPlace& place) {
  UniqueFd link = connect_to(address_of(place));
  if (!link) {
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
    throw EngineError(
        fmt::format("cannot connect to the rendezvous '{}' ({})", place.name, system_error("connect", errno)));
  }
  const auto holder = holder_of(link);
  if (!is_another_users(holder)) return link;
  throw EngineError(
      fmt::format("the rendezvous '{}' is held by {}; choose another name", place.name, describe(holder)));
}

/// Another rank's search for rank 0.
class Search {
 public:
  Search(int rank, const MeetingPlace& place) : rank_(rank), place_(place) {}

  StartLink find(const Options& options, Deadline deadline) {
    const auto begin = Clock::now();
    Reminder reminder(first_reminder, options.remind);
    while (!try_to_greet(options.stop)) {
      throw_if_stopped(options.stop);
      if (deadline.expired()) throw_timeout();
      reminder.write_if_due([&] {
        return fmt::format("rank {} has waited {} at the rendezvous '{}' for rank 0", rank_,
                           format_duration(Clock::now() - begin), place_.name);
      });
    }
    return std::move(link_);
  }

 private:
  static constexpr Duration pause = std::chrono::milliseconds(5);

  /// Returns whether rank 0 has greeted.
  bool try_to_greet(const std::stop_token& stop) {
    if (!link_) {
      if (UniqueFd socket = try_connect(place_)) {
        holder_ = holder_of(socket);
        link_ = StartLink(std::move(socket), LinkSide::caller, place_.secret);
      } else {
        std::this_thread::sleep_for(pause);
        if (refused_ && refused_->expired()) throw_refused();
        return false;
      }
    }
    if (wait_readable(std::array{link_.fd()}, Deadline::after(10 * pause), stop).empty()) return false;
    if (link_.receive().kind == Kind::greeting) return true;
    link_ = StartLink();
    // Rank 0 had no room or has ended, or the other end is not rank 0.
    if (!refused_) refused_ = Deadline::after(time_for_late_ranks);
    if (refused_->expired()) throw_refused();
    std::this_thread::sleep_for(pause);
    return false;
  }

  [[noreturn]] void throw_refused() const {
    throw PeerLost(
        0, fmt::format(
               "{} at the rendezvous '{}' ended while the ranks were meeting, or is not rank 0; its own output may "
               "say why",
               describe(holder_), place_.name));
  }

  [[noreturn]] void throw_timeout() const {
    const std::string held =
        holder_ ? fmt::format(" ({} listens there but has not proven that it is rank 0)", describe(holder_)) : "";
    throw Timeout(
        fmt::format("rank {} found no rank 0 at the rendezvous '{}'{}; check that rank 0 has been started with "
                    "the same rendezvous, or raise the timeout",
                    rank_, place_.name, held));
  }

  int rank_;
  const MeetingPlace& place_;
  StartLink link_;
  std::optional<ucred> holder_;      ///< process at the other end of the last connection
  std::optional<Deadline> refused_;  ///< when to give up, set once a connection has ended
};

}  // namespace

StartConnections gather(int size, const MeetingPlace& place, const Options& options, Deadline deadline) {
  Rendezvous meeting(size, place);
  try {
    return meeting.gather(options, deadline);
  } catch (const Error& error) {
    meeting.send_failure(StartFailure::of(error), options.stop);
    throw;
  }
}

StartConnections find(int rank, const MeetingPlace& place, const Options& options, Deadline deadline) {
  try {
    StartConnections connected;
    connected.links.push_back(Search(rank, place).find(options, deadline));
    return connected;
  } catch (const Error& error) {
    if (options.report) options.report(error.what());
    throw;
  }
}

void reject_ranks(int size, const MeetingPlace& place, const StartFailure& cause, Deadline deadline) {
  Rendezvous(size, place).reject(cause, deadline);
}

bool send_failure_to_rank_zero(int rank, const MeetingPlace& place, const StartFailure& cause,
                               Deadline deadline) noexcept try {
  return Search(rank, place).find({}, deadline).send(encode(cause), {}, deadline);
} catch (const std::exception&) {
  return false;
}

}  // namespace levada::shm
