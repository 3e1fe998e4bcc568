#include "levada/exchange/transfer_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "levada/base/assert.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

constexpr std::string_view operation = "exchange";
/// Number of yields before a rank sleeps. The others are working on the same exchange, and a wake-up costs more.
constexpr int max_yields = 16;

}  // namespace

TransferLoop::TransferLoop(const TransferParts& parts, std::span<const std::shared_ptr<Channel>> to_all)
    : parts_(parts) {
  const SampleStore::Reading here(parts_.store);
  if (to_all.empty()) open_rows(here);
  else open_to_all(to_all, here);
  // Each rank starts with a different receiver.
  const auto beyond = std::ranges::find_if(
      sends_, [&](const Send& send) { return send.channel->to().front() > parts_.engine.info().rank; });
  std::rotate(sends_.begin(), beyond, sends_.end());
}

void TransferLoop::open_rows(const SampleStore::Reading& here) {
  std::size_t incoming = 0;
  for (const ExchangeRow& row : parts_.rows.rows) {  // all ranks open channels in the order of the plan
    const bool is_sent = row.from == parts_.engine.info().rank;
    if (row.bytes > 0) {
      auto channel = parts_.engine.open(row.from, row.receivers(), 1);
      if (is_sent) add_send({&row, 1}, here, std::move(channel));
      else receives_.push_back({std::move(channel), row.begin, row.begin + row.bytes, incoming, incoming + 1});
    }
    if (!is_sent) ++incoming;
  }
}

void TransferLoop::open_to_all(std::span<const std::shared_ptr<Channel>> to_all, const SampleStore::Reading& here) {
  const auto& rows = parts_.rows.rows;
  std::size_t incoming = 0;
  for (std::size_t from = 0; from < to_all.size(); ++from) {
    const std::uint64_t bytes = parts_.rows.sent_by[from];
    const auto rank = static_cast<int>(from);
    const auto begin = std::ranges::lower_bound(rows, rank, {}, &ExchangeRow::from);
    const auto end = std::ranges::upper_bound(rows, rank, {}, &ExchangeRow::from);
    const bool is_sent = rank == parts_.engine.info().rank;
    const std::size_t first = incoming;
    if (!is_sent) incoming += static_cast<std::size_t>(end - begin);
    if (bytes == 0) continue;
    if (is_sent) add_send({begin, end}, here, to_all[from]);
    else receives_.push_back({to_all[from], 0, bytes, first, incoming});
  }
}

void TransferLoop::add_send(std::span<const ExchangeRow> rows, const SampleStore::Reading& here,
                            std::shared_ptr<Channel> channel) {
  OutgoingStream stream(parts_.rows, rows, parts_.index, parts_.holdings, here);
  const std::uint64_t bytes = stream.bytes_left(), chunk = std::min(parts_.chunk_bytes, bytes);
  const std::uint64_t room = chunk + std::min(chunk, bytes - chunk);
  sends_.push_back({std::move(stream), std::move(channel), room});
}

void TransferLoop::prepare_incoming() {
  const auto& rows = parts_.rows.rows;
  const auto is_incoming = [&](const ExchangeRow& row) { return row.from != parts_.engine.info().rank; };
  std::uint64_t bytes = 0;
  for (const ExchangeRow& row : rows) bytes += is_incoming(row) ? row.bytes : 0;
  incoming_.reserve(rows.size());
  for (const ExchangeRow& row : rows) {
    if (is_incoming(row)) incoming_.emplace_back(parts_.rows, row, parts_.index, parts_.store, copy_mode_for(bytes));
  }
}

void TransferLoop::run(ExchangeResult& result) {
  send_some(result);  // others should not wait while this rank allocates memory
  prepare_incoming();
  for (int idle = 0; next_ < sends_.size() || !active_.empty() || !receives_.empty(); ++idle) {
    const bool sent = send_some(result);
    const bool received = receive_some(result);
    if (sent || received) {
      last_moved_ = Clock::now();
      idle = 0;
    } else if (idle < max_yields) {
      std::this_thread::yield();
    } else {
      wait();
    }
  }
}

/// A channel of a single row has at most one unacknowledged message. An unacknowledged message counts as in flight,
/// which bounds the bytes in flight. The loop can end before it is acknowledged.
bool TransferLoop::send_some(ExchangeResult& result) {
  bool progress = false;
  blocked_on_memory_ = 0;
  while (next_ < sends_.size() &&
         (active_.empty() || in_flight_ + sends_[next_].room <= parts_.options.in_flight_bytes)) {
    in_flight_ += sends_[next_].room;
    active_.push_back(next_++);
  }
  std::erase_if(active_, [&](std::size_t i) {
    bool over = false;
    progress |= send_some_of(sends_[i], over, result);
    LEVADA_ASSERT(!over || sends_[i].room <= in_flight_, "a finished send has room in flight");
    if (over) in_flight_ -= sends_[i].room;
    return over;
  });
  return progress;
}

bool TransferLoop::send_some_of(Send& send, bool& over, ExchangeResult& result) {
  bool progress = false;
  while (!is_finished(send)) {
    OutgoingMessage& message = send.message;
    if (!message.block) {
      message = send.stream.next(parts_.engine, parts_.chunk_bytes);
      if (!message.block) {
        blocked_on_memory_ = message.size;
        return progress;
      }
      progress = true;
    }
    const std::uint64_t bytes = message.payload;
    if (!message.try_publish(parts_.engine, *send.channel)) return progress;
    result.sent_bytes += bytes;
    ++result.sent_messages;
    progress = true;
  }
  over = next_ == sends_.size() || has_room(send);
  return progress || over;
}

/// Returns whether the channel has room for a message; with a window of one, whether all messages have been received.
bool TransferLoop::has_room(const Send& send) const {
  Channel* const channel[] = {send.channel.get()};
  return parts_.engine.wait({.publish = channel}, Deadline::now()) == Woken::ready;
}

bool TransferLoop::receive_some(ExchangeResult& result) {
  bool progress = false;
  std::erase_if(receives_, [&](Receive& receive) {
    while (receive.at < receive.end) {
      const auto received = parts_.engine.try_receive(*receive.channel);
      if (received.ended) throw_left(parts_.engine, receive.channel->from(), "it had sent all of an exchange");
      if (!received.message) return false;
      result.received_bytes += receive_message(receive, received.message->bytes);
      progress = true;
    }
    return true;
  });
  return progress;
}

std::uint64_t TransferLoop::receive_message(Receive& receive, ByteView message) {
  const std::size_t first_row = receive.row;
  std::uint64_t written = 0;
  for (const ByteView run : runs_of(parts_.engine, receive.channel->from(), message, receive.end - receive.at)) {
    written += write(receive, run);
  }
  for (std::size_t row = first_row; row < std::min(receive.row + 1, receive.end_row); ++row) incoming_[row].commit();
  return written;
}

std::uint64_t TransferLoop::write(Receive& receive, ByteView message) {
  const std::uint64_t begin = receive.at;
  LEVADA_ASSERT(message.size() <= receive.end - receive.at, "a run is at most as long as the rest of its row");
  receive.at += message.size();
  std::uint64_t written = 0;
  while (receive.row < receive.end_row) {
    IncomingRow& incoming = incoming_[receive.row];
    const std::uint64_t first = std::max(begin, incoming.row().begin);
    const std::uint64_t end = incoming.row().begin + incoming.row().bytes;
    const std::uint64_t last = std::min(receive.at, end);
    if (first < last) incoming.write(message.subspan(first - begin, last - first));
    if (first < last) written += last - first;
    if (end > receive.at) break;
    ++receive.row;
  }
  return written;
}

void TransferLoop::wait() {
  std::vector<Channel*> receive, publish;
  for (const Receive& each : receives_) receive.push_back(each.channel.get());
  for (const std::size_t i : active_) {
    if (sends_[i].message.block || is_finished(sends_[i])) publish.push_back(sends_[i].channel.get());
  }
  Engine& engine = parts_.engine;
  int other = -1;
  if (!receive.empty()) other = receive[0]->from();
  else if (!publish.empty()) other = rank_without_room(engine, *publish[0]);
  engine.post(Status::make(operation, -1, other));
  const auto explain = [&] {
    const auto waited = Clock::now() - last_moved_;
    if (!receive.empty() || !publish.empty()) return explain_wait(engine, operation, other, waited);
    return explain_full_memory(engine, blocked_on_memory_, operation, waited, {});
  };
  const WaitFor conditions{
      .receive = receive, .publish = publish, .allocate = blocked_on_memory_, .poll = &parts_.options.poll};
  const auto deadline = Deadline::after(parts_.options.timeout - (Clock::now() - last_moved_));
  if (Reminder().wait(engine, conditions, deadline, explain) == Woken::timeout) throw Timeout(explain());
}

}  // namespace levada
