#include "levada/engine/mpi/transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"

namespace levada::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A waiting thread polls without a pause until nothing has moved for this long, and then less and less often. While
// bytes are in flight, MPI moves them only when it is called.
constexpr Duration eager_for = microseconds(100), eager_for_pending = milliseconds(10);
/// A waiting thread yields the core between polls only after nothing has moved for this long, because other threads'
/// time slices are long compared with a short message.
constexpr Duration yields_after = microseconds(20);
constexpr Duration max_pause = milliseconds(2), max_pause_pending = microseconds(100);
/// Maximum number of polls between two readings of the clock, each of which takes as long as a poll.
constexpr int max_polls_at_once = 8;
/// Minimum sleep of the transport's own thread, which must not take a core from those that compute.
constexpr Duration min_nap = microseconds(50);
/// How long the engine may take to send its last frame once all peers have closed, and the peers theirs once a group
/// has ended for a cause.
constexpr Duration grace = seconds(5);
/// Interval between checks of whether other hosts answer.
constexpr Duration check_interval = milliseconds(100);
/// Maximum number of headers accepted between two tests of sends and receives.
constexpr int max_headers_at_once = 64;

std::string text_of(int result) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(result, text.data(), &length) != MPI_SUCCESS) return fmt::format("MPI's error {}", result);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

void check(int result, const char* call) {
  if (result != MPI_SUCCESS) throw EngineError(fmt::format("{} failed: {}", call, text_of(result)));
}

MpiTransport::MpiTransport(const Settings& settings, int rank, std::vector<int> host_of)
    : settings_(settings), rank_(rank), host_of_(std::move(host_of)), peers_(host_of_.size()) {}

MpiTransport::~MpiTransport() {
  if (thread_.joinable()) thread_.join();
  // MPI may read and write the memory of lost peers' frames as long as the process lives.
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): if the allocation fails, the process should end
  if (!operations_.empty()) new std::pair(std::move(operations_), std::move(peers_));
}

void MpiTransport::start(std::shared_ptr<p2p::Receiver> receiver) {
  if (peers_.size() == 1) {
    is_over_ = has_ended_ = true;
    return;
  }
  receiver_ = receiver.get();
  weak_receiver_ = receiver;
  thread_ = start_thread("messages over MPI", [this, receiver = std::move(receiver)]() mutable {
    run();
    receiver.reset();  // may drop all but one reference to this transport
    has_ended_ = true;
  });
}

// ---- when to poll

void MpiTransport::run() {
  auto checked_at = Clock::now();
  while (!try_end()) {
    const auto now = Clock::now();
    if (settings_.watch && now - checked_at > check_interval) {
      checked_at = now;
      check_hosts();
    }
    // A waiting thread polls more often.
    const bool is_polled = now - waited_at_.load() < 2 * max_pause;
    if (!is_polled) poll(now);
    std::this_thread::sleep_for(is_polled ? 2 * max_pause : std::max(pause(now), min_nap));
  }
}

void MpiTransport::check_hosts() {
  for (const auto& [ranks, text] : settings_.watch->silences()) {
    if (std::ranges::all_of(ranks, [&](int each) { return peer(each).is_lost.load(); })) continue;
    for (const int each : ranks) peer(each).is_lost = true;
    receiver_->lost(ranks, text);
  }
}

Duration MpiTransport::pause(Clock::time_point now) const {
  const Duration quiet = now - moved_at_.load();
  const bool is_pending = is_pending_;
  if (quiet < (is_pending ? eager_for_pending : eager_for)) return Duration::zero();
  return std::min(quiet / 8, is_pending ? max_pause_pending : max_pause);
}

Duration MpiTransport::progress() {
  if (is_over_) return Duration::max();
  const auto now = Clock::now();
  const bool begins_to_wait = now - waited_at_.exchange(now) > 4 * max_pause;
  if (begins_to_wait) moved_at_ = now;
  const Duration quiet = now - moved_at_.load();
  const int max_polls = quiet < eager_for ? max_polls_at_once : 1;
  bool has_moved = false;
  for (int i = 0; i < max_polls && !has_moved; ++i) has_moved = poll(now);
  if (!has_moved && quiet > yields_after) std::this_thread::yield();
  return pause(now);
}

void MpiTransport::schedule_flush(Clock::time_point at) {
  flush_at_ = at;
}

bool MpiTransport::poll(Clock::time_point now) {
  const std::unique_lock lock(polling_, std::try_to_lock);
  if (!lock || is_over_) return false;
  bool has_moved = false;
  for (int i = 0; i < max_headers_at_once && accept_header(); ++i) has_moved = true;
  has_moved |= complete_operations();
  if (auto due = flush_at_.load(); now >= due) {
    if (flush_at_.compare_exchange_strong(due, Clock::time_point::max())) receiver_->flush_deferred();
  }
  if (has_moved) moved_at_ = Clock::now();
  return has_moved;
}

// ---- receiving

bool MpiTransport::accept_header() {
  int is_found = 0, bytes = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  Operation operation;
  int result = MPI_Improbe(MPI_ANY_SOURCE, settings_.header_tag, settings_.communicator, &is_found, &message, &status);
  if (result != MPI_SUCCESS) {
    for (int each = 0; each < static_cast<int>(peers_.size()); ++each) lose(each, text_of(result));
    return false;
  }
  if (is_found == 0) return false;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  operation.peer = status.MPI_SOURCE;
  Incoming& frame = peer(operation.peer).incoming.emplace_back();
  frame.header_bytes = static_cast<std::size_t>(bytes);
  frame.header = std::make_unique_for_overwrite<std::byte[]>(frame.header_bytes);
  operation.incoming = &frame;
  result = MPI_Imrecv(frame.header.get(), bytes, MPI_BYTE, &message, &operation.request);
  int is_complete = 0;
  if (result == MPI_SUCCESS) result = MPI_Test(&operation.request, &is_complete, &status);
  if (result == MPI_SUCCESS && is_complete == 0) operations_.push_back(std::move(operation));
  else complete(operation, result, status);
  return true;
}

void MpiTransport::complete(const Operation& operation, int result, const MPI_Status& status) {
  if (result != MPI_SUCCESS) return lose(operation.peer, text_of(result));
  if (operation.incoming == nullptr) return;
  Incoming& frame = *operation.incoming;
  if (frame.state == Incoming::State::header_coming) {
    if (frame.header_bytes == 0) return lose(operation.peer, "it has left before its last message");
    frame.state = Incoming::State::header_here;
  } else {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    frame.landed += static_cast<std::size_t>(bytes);
    // The last piece is shorter, and may be empty.
    if (static_cast<std::size_t>(bytes) < settings_.max_piece_bytes) {
      frame.is_last_posted = true;
      frame.state = Incoming::State::complete;
    } else {
      post_piece(operation.peer, frame);
    }
  }
  advance(operation.peer);
}

void MpiTransport::advance(int from) {
  auto& frames = peer(from).incoming;
  // Pieces of bodies are distinguished only by their order.
  for (Incoming& frame : frames) {
    if (frame.state == Incoming::State::header_coming) break;
    if (frame.state == Incoming::State::header_here) {
      if (receiver_->is_closed(from)) return;  // the next body would be mistaken for one that was refused
      frame.body = receiver_->room_for_body(from, {frame.header.get(), frame.header_bytes});
      if (!frame.body && receiver_->is_closed(from)) return;
      frame.state = frame.body ? Incoming::State::body_coming : Incoming::State::complete;
      if (frame.body) post_piece(from, frame);
    }
    if (!frame.is_last_posted) break;
  }
  while (!frames.empty() && frames.front().state == Incoming::State::complete) {
    Incoming frame = std::move(frames.front());
    frames.pop_front();
    receiver_->deliver(from, {frame.header.get(), frame.header_bytes}, std::move(frame.body), frame.landed);
  }
}

void MpiTransport::post_piece(int from, Incoming& frame) {
  const auto room = frame.body.memory().subspan(frame.landed);
  const std::size_t bytes = std::min(room.size(), settings_.max_piece_bytes);
  frame.is_last_posted = bytes < settings_.max_piece_bytes;
  Operation operation{.peer = from, .incoming = &frame};
  const int result = MPI_Irecv(room.data(), static_cast<int>(bytes), MPI_BYTE, from, settings_.body_tag,
                               settings_.communicator, &operation.request);
  if (result != MPI_SUCCESS) return lose(from, text_of(result));
  operations_.push_back(std::move(operation));
}

bool MpiTransport::complete_operations() {
  if (!is_pending_ && operations_.empty()) return false;
  {
    const std::lock_guard lock(sends_);
    std::move(new_sends_.begin(), new_sends_.end(), std::back_inserter(operations_));
    new_sends_.clear();
    is_pending_ = !operations_.empty();
  }
  if (operations_.empty()) return false;
  const std::size_t size = operations_.size();
  requests_.clear();
  for (const Operation& operation : operations_) requests_.push_back(operation.request);
  indices_.resize(size);
  statuses_.resize(size);
  int count = 0;
  const int result = MPI_Testsome(static_cast<int>(size), requests_.data(), &count, indices_.data(), statuses_.data());
  if (count == MPI_UNDEFINED || count == 0) return false;
  std::vector<Operation> completed;
  for (int i = 0; i < count; ++i) {
    completed.push_back(
        std::exchange(operations_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])], {}));
  }
  std::erase_if(operations_, [](const Operation& operation) { return operation.peer < 0; });
  for (std::size_t i = 0; i < completed.size(); ++i) {
    complete(completed[i], result == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : result, statuses_[i]);
  }
  return true;
}

void MpiTransport::lose(int lost, const std::string& why) {
  if (lost == rank_) return;
  peer(lost).is_lost = true;
  receiver_->lost(lost, why);
}

// ---- sending

void MpiTransport::send(std::span<const int> peers, const p2p::Frame& frame) {
  for (const int to : peers) {
    std::unique_lock lock(sends_);
    if (is_over_) throw EngineError("every rank has left");
    const int result = send_to(to, frame);
    lock.unlock();
    if (result != MPI_SUCCESS) lose(to, text_of(result));
  }
  moved_at_ = Clock::now();
}

int MpiTransport::send_to(int to, const p2p::Frame& frame) {
  int result = send_piece(to, frame.header, settings_.header_tag);
  if (frame.body.bytes.empty()) return result;
  ByteView rest = frame.body.bytes;
  for (bool is_last = false; !is_last && result == MPI_SUCCESS;) {
    const ByteView piece = rest.first(std::min(rest.size(), settings_.max_piece_bytes));
    is_last = piece.size() < settings_.max_piece_bytes;
    result = send_piece(to, {piece, frame.body.hold}, settings_.body_tag);
    rest = rest.subspan(piece.size());
  }
  return result;
}

int MpiTransport::send_piece(int to, Lease bytes, int tag) {
  Operation operation{.peer = to, .sent = std::move(bytes)};
  const ByteView view = operation.sent.bytes;
  int result = MPI_Isend(view.data(), static_cast<int>(view.size()), MPI_BYTE, to, tag, settings_.communicator,
                         &operation.request);
  int is_complete = 0;
  if (result == MPI_SUCCESS) result = MPI_Test(&operation.request, &is_complete, MPI_STATUS_IGNORE);
  if (result != MPI_SUCCESS || is_complete != 0) return result;
  is_pending_ = true;
  new_sends_.push_back(std::move(operation));
  return MPI_SUCCESS;
}

// ---- the end

void MpiTransport::close(int to) {
  peer(to).has_last_frame = true;
}

bool MpiTransport::try_end() {
  const bool is_given_up = is_given_up_;
  if (!is_given_up && !receiver_->all_closed()) return false;
  const auto now = Clock::now();
  closed_at_ = std::min(closed_at_, now);
  const std::scoped_lock lock(polling_, sends_);
  for (int each = 0; each < static_cast<int>(peers_.size()); ++each) {
    if (is_given_up && each != rank_ && !receiver_->is_closed(each)) peer(each).is_lost = true;
    const bool is_sent = each == rank_ || peer(each).has_last_frame || peer(each).is_lost;
    if (!is_sent && now - closed_at_ < grace) return false;
  }
  const auto is_waited_for = [this](const Operation& operation) {
    return operation.incoming == nullptr && peer(operation.peer).has_last_frame && !peer(operation.peer).is_lost;
  };
  if (std::any_of(operations_.begin(), operations_.end(), is_waited_for)) return false;
  if (std::any_of(new_sends_.begin(), new_sends_.end(), is_waited_for)) return false;
  for (int each = 0; each < static_cast<int>(peers_.size()); ++each) {
    // The engine has given up on this peer, which would otherwise wait forever for its last frame or for a receive.
    const bool is_refused = !peer(each).has_last_frame || !peer(each).incoming.empty();
    if (each == rank_) continue;
    if (is_refused) send_piece(each, {}, settings_.header_tag);
    if (is_refused || peer(each).is_lost) has_losses_ = true;
  }
  std::move(new_sends_.begin(), new_sends_.end(), std::back_inserter(operations_));
  new_sends_.clear();
  has_failed_ = receiver_->has_failed();
  is_over_ = true;
  return true;
}

bool MpiTransport::has_left() {
  const auto deadline = Deadline::after(grace);
  const auto is_gone = [&](Peer& each) {
    if (&each == &peer(rank_) || each.has_last_frame || each.is_lost) return true;
    const auto receiver = weak_receiver_.lock();
    return !receiver || receiver->is_closed(static_cast<int>(&each - peers_.data()));
  };
  while (!is_over_ && !std::all_of(peers_.begin(), peers_.end(), is_gone)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(max_pause);
  }
  return true;
}

std::string MpiTransport::describe_wait(p2p::Receiver& receiver, Duration waited) const {
  std::vector<int> awaited;
  for (int each = 0; each < static_cast<int>(peers_.size()); ++each) {
    if (!receiver.is_closed(each)) awaited.push_back(each);
  }
  return fmt::format("rank {} has ended, and has waited {} for rank {} to receive its last messages", rank_,
                     format_duration(waited), fmt::join(awaited, ", "));
}

void MpiTransport::wait_until_over(Duration leave_timeout) {
  const auto begin = Clock::now();
  Reminder reminder;
  while (thread_.joinable() && !has_ended_) {
    std::this_thread::sleep_for(max_pause);
    const auto receiver = weak_receiver_.lock();
    if (!receiver) continue;
    const Duration waited = Clock::now() - begin;
    reminder.write_if_due([&] { return describe_wait(*receiver, waited); });
    is_given_up_ = waited > (receiver->has_failed() ? std::min(grace, leave_timeout) : leave_timeout);
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace levada::mpi
