#include "levada/engine/mpi/host_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/threads.h"

namespace levada::mpi {
namespace {

using std::chrono::milliseconds;

/// Time in which a process that connects must prove that it is a rank.
constexpr Duration patience = std::chrono::seconds(5);
constexpr Duration retry_interval = milliseconds(50);
constexpr int poll_ms = 50;

/// Size of the two ranks that the caller of a link sends.
constexpr std::size_t ranks_bytes = 2 * sizeof(std::int32_t);
constexpr std::size_t call_bytes = sizeof(Greeting) + ranks_bytes + sizeof(Proof);
constexpr std::size_t answer_bytes = sizeof(Greeting) + sizeof(Proof);  // includes the greeting before it

Secret key_of(const Secret& secret) {
  return derive_secret(secret, "hosts that watch each other");
}

bool is_out_of_files(int error) {
  return error == EMFILE || error == ENFILE;
}

/// Receives bytes that have arrived, up to a total of `count`. Returns false, with errno set, if nothing more will
/// arrive.
bool receive_some(int connection, Bytes& received, std::size_t count) {
  const std::size_t before = received.size();
  received.resize(count);
  const ssize_t result = ::recv(connection, received.data() + before, count - before, 0);
  received.resize(before + static_cast<std::size_t>(std::max<ssize_t>(result, 0)));
  if (result == 0) errno = ECONNRESET;
  return result > 0 || (result < 0 && (errno == EAGAIN || errno == EINTR));
}

/// Sends bytes that fit into the buffer of a new connection.
bool send_all(int connection, ByteView bytes) {
  return ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

/// A rank's attempt to connect to one address of another.
class Attempt {
 public:
  Attempt(const Address& address, std::uint16_t port) : address_(address), port_(port) {}

  int fd() const { return connection_ ? connection_.get() : -1; }
  short awaited_events() const { return is_open_ ? POLLIN : POLLOUT; }
  bool has_failed() const { return has_failed_; }
  int error() const { return error_; }
  bool has_connected() const { return has_connected_; }
  std::string description() const { return fmt::format("{} ({})", text_of(address_), failure_); }

  /// Starts connecting, if an attempt is due.
  void begin() {
    if (connection_ || has_failed_ || Clock::now() < begins_at_) return;
    is_open_ = false;
    received_.clear();
    connection_ = begin_to_connect(address_, port_);
    if (!connection_) fail(errno, is_out_of_files(errno) || errno == EADDRNOTAVAIL || errno == EAGAIN);
  }
  /// Call after poll() has reported an event.
  void advance(const Secret& key, std::int32_t rank, std::int32_t listener) {
    if (!is_open_) return open(key);
    // Retry, because a rank with too many strangers drops the oldest, which may be this one.
    if (!receive_some(fd(), received_, has_called_ ? answer_bytes : sizeof(Greeting))) return fail(errno, true);
    if (!has_called_ && received_.size() == sizeof(Greeting)) return call(rank, listener);
    if (!has_called_ || received_.size() < answer_bytes) return;
    is_proven_ = proof_->open(ByteView(received_).subspan(sizeof(Greeting))).has_value();
    if (!is_proven_) fail_as_stranger();
  }
  /// Returns whether the listener has proven to be a rank.
  bool is_proven() const { return is_proven_; }
  UniqueFd take_connection() { return std::move(connection_); }

 private:
  void open(const Secret& key) {
    if (const int error = error_of(fd()); error != 0) return fail(error, false);
    is_open_ = has_connected_ = true;
    has_called_ = false;
    proof_.emplace(LinkSide::caller, key);
    failure_ = "connected, but the listener did not prove that it is a rank of this job";
  }
  void call(std::int32_t rank, std::int32_t listener) {
    if (proof_->greet(received_) != LinkProof::Peer::rank) return fail_as_stranger();
    ByteWriter ranks;
    ranks.put(rank);
    ranks.put(listener);
    ByteWriter call;
    call.put_bytes(proof_->greeting());
    call.put_bytes(proof_->seal(ranks.view()));
    if (!send_all(fd(), call.view())) return fail(errno, true);
    has_called_ = true;
  }
  void fail(int error, bool retries) {
    connection_ = {};
    error_ = error;
    failure_ = std::strerror(error);
    has_failed_ = !retries;
    begins_at_ = Clock::now() + retry_interval;
  }
  void fail_as_stranger() {
    fail(0, false);
    failure_ = "the listener is not a rank of this job";
  }

  Address address_;
  std::uint16_t port_;
  UniqueFd connection_;
  bool is_open_ = false, has_called_ = false, is_proven_ = false, has_failed_ = false, has_connected_ = false;
  std::optional<LinkProof> proof_;
  Bytes received_;
  int error_ = 0;
  std::string failure_ = std::strerror(ETIMEDOUT);
  Clock::time_point begins_at_{};
};

/// All attempts of one rank to reach another.
struct Call {
  int listener = -1;
  std::uint32_t port = 0;
  std::vector<Attempt> attempts;
  UniqueFd connection;

  bool has_ended() const {
    return connection || std::ranges::all_of(attempts, [](const Attempt& each) { return each.has_failed(); });
  }
};

[[noreturn]] void throw_unreachable(int rank, const Call& call) {
  if (call.attempts.empty()) {
    throw EngineError(
        fmt::format("rank {} on host {} cannot connect to rank {}: that rank's host has no network address that this "
                    "host lacks; connect the hosts by a network, or set LEVADA_SILENCE=0 on rank 0 to do without these "
                    "connections",
                    rank, host_name(), call.listener));
  }
  std::vector<std::string> attempts;
  for (const Attempt& each : call.attempts) attempts.push_back(each.description());
  const auto any = [&](auto holds) { return std::ranges::any_of(call.attempts, holds); };
  const char* remedy =
      "open the firewall between them for TCP, or set LEVADA_SILENCE=0 on rank 0 to do without these connections";
  if (any([](const Attempt& each) { return is_out_of_files(each.error()); })) {
    remedy = "raise the number of open files, for example with `ulimit -n 65536`, before the job starts";
  } else if (any([](const Attempt& each) { return each.has_connected(); })) {
    remedy =
        "check that the rank is running and may open more files (`ulimit -n`), and that the address does not belong "
        "to another host";
  }
  throw EngineError(fmt::format("rank {} on host {} cannot connect to rank {} at port {} of {} to watch its host; {}",
                                rank, host_name(), call.listener, call.port, fmt::join(attempts, ", "), remedy));
}

}  // namespace

Acceptor::Acceptor(const Secret& secret, int rank)
    : secret_(key_of(secret)), rank_(rank), listener_(listen_at_any_port()) {
  const auto addresses = own_addresses();
  place_.num_addresses = static_cast<std::uint32_t>(std::min(addresses.size(), place_.addresses.size()));
  std::copy_n(addresses.begin(), place_.num_addresses, place_.addresses.begin());  // not payload: addresses
  place_.port = port_of(listener_.get());
  thread_ = start_thread("connections of other hosts", [this] { run(); });
}

std::vector<HostLink> Acceptor::stop() {
  is_stopped_ = true;
  if (thread_.joinable()) thread_.join();
  listener_ = {};
  strangers_.clear();
  return std::move(links_);
}

void Acceptor::run() {
  while (!is_stopped_) {
    std::vector<pollfd> awaited{{.fd = listener_.get(), .events = POLLIN}};
    for (const Stranger& each : strangers_) awaited.push_back({.fd = each.connection.get(), .events = POLLIN});
    ::poll(awaited.data(), awaited.size(), poll_ms);
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      Stranger& each = strangers_[i];
      const Answer answer = awaited[i + 1].revents != 0 ? receive(each) : Answer::incomplete;
      if (answer == Answer::stranger || each.until.expired()) each.connection = {};
    }
    std::erase_if(strangers_, [](const Stranger& each) { return !each.connection; });
    if (awaited[0].revents != 0) accept_one();
  }
}

void Acceptor::accept_one() {
  UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool is_full = connection ? strangers_.size() == max_strangers : is_out_of_files(errno);
  if (is_full && !strangers_.empty()) strangers_.erase(strangers_.begin());
  else if (is_full) std::this_thread::sleep_for(retry_interval);  // the listener stays readable
  if (!connection) return;
  strangers_.push_back({.connection = std::move(connection),
                        .proof = LinkProof(LinkSide::listener, secret_),
                        .received = {},
                        .until = Deadline::after(patience)});
  const Stranger& stranger = strangers_.back();
  if (!send_all(stranger.connection.get(), stranger.proof.greeting())) strangers_.pop_back();
}

Acceptor::Answer Acceptor::receive(Stranger& stranger) {
  const int fd = stranger.connection.get();
  // One extra byte reveals a stranger that sends more than a rank does.
  if (!receive_some(fd, stranger.received, call_bytes + 1)) return Answer::stranger;
  if (stranger.received.size() < call_bytes) return Answer::incomplete;
  const ByteView call(stranger.received);
  if (call.size() > call_bytes) return Answer::stranger;
  if (stranger.proof.greet(call.first(sizeof(Greeting))) != LinkProof::Peer::rank) return Answer::stranger;
  const auto ranks = stranger.proof.open(call.subspan(sizeof(Greeting)));
  if (!ranks || ranks->size() != ranks_bytes) return Answer::stranger;
  ByteReader reader(*ranks);
  const auto caller = reader.get<std::int32_t>(), listener = reader.get<std::int32_t>();
  if (listener != rank_ || !send_all(fd, stranger.proof.seal({}))) return Answer::stranger;
  links_.push_back({.rank = caller, .connection = std::move(stranger.connection)});
  return Answer::rank;
}

std::vector<HostLink> call_all(const std::map<int, Place>& places, const Secret& secret, int rank, Deadline deadline) {
  const Secret key = key_of(secret);
  const auto own = own_addresses();
  std::vector<Call> calls;
  for (const auto& [listener, place] : places) {
    Call& call = calls.emplace_back(Call{.listener = listener, .port = place.port, .attempts = {}, .connection = {}});
    for (std::size_t i = 0; i < std::min<std::size_t>(place.num_addresses, place.addresses.size()); ++i) {
      // Skip addresses that this host also has, such as that of a container bridge.
      if (std::ranges::find(own, place.addresses[i]) != own.end()) continue;
      call.attempts.emplace_back(place.addresses[i], static_cast<std::uint16_t>(place.port));
    }
  }
  while (!std::ranges::all_of(calls, &Call::has_ended) && !deadline.expired()) {
    std::vector<pollfd> awaited;
    for (Call& call : calls) {
      for (Attempt& each : call.attempts) {
        if (!call.connection) each.begin();
        if (each.fd() >= 0) awaited.push_back({.fd = each.fd(), .events = each.awaited_events()});
      }
    }
    ::poll(awaited.data(), awaited.size(), poll_ms);
    auto next = awaited.begin();
    for (Call& call : calls) {
      for (Attempt& each : call.attempts) {
        if (each.fd() < 0) continue;
        if (next++->revents == 0 || call.connection) continue;
        each.advance(key, rank, call.listener);
        if (each.is_proven()) call.connection = each.take_connection();
      }
      if (call.connection) call.attempts.clear();
    }
  }
  std::vector<HostLink> links;
  for (Call& call : calls) {
    if (!call.connection) throw_unreachable(rank, call);
    links.push_back({.rank = call.listener, .connection = std::move(call.connection)});
  }
  return links;
}

}  // namespace levada::mpi
