#include "levada/engine/p2p/outbox.h"

#include <exception>
#include <utility>

#include "levada/base/assert.h"

namespace levada::p2p {

Outbox::Outbox(std::shared_ptr<Transport> transport, int size)
    : transport_(std::move(transport)),
      max_header_bytes_(transport_->max_header_bytes()),
      peers_(static_cast<std::size_t>(size)) {}

void Outbox::add(int to, Entry entry, bool is_urgent, std::optional<std::uint64_t> receipt_of) {
  const std::lock_guard lock(mutex_);
  auto& items = peer(to).items;
  if (receipt_of && !items.empty() && items.back().receipt_of == receipt_of) items.pop_back();
  add_locked(to, {.entry = std::move(entry), .body = {}, .receipt_of = receipt_of}, is_urgent);
}

void Outbox::add(std::span<const int> to, const Entry& message, const Lease& body) {
  const std::lock_guard lock(mutex_);
  ++num_multicasts_;
  for (const int rank : to) {
    add_locked(rank, {.entry = message, .body = body, .multicast = num_multicasts_, .receipt_of = {}}, true);
  }
}

void Outbox::expedite(int to) {
  const std::lock_guard lock(mutex_);
  if (!peer(to).items.empty()) make_due(to);
}

void Outbox::finish(int to, Entry entry) {
  const std::lock_guard lock(mutex_);
  add_locked(to, {.entry = std::move(entry), .body = {}, .receipt_of = {}, .is_last = true}, true);
  peer(to).is_closed = true;
}

void Outbox::close(int to, Entry last) {
  std::deque<Item> unsent;  // outlives the lock, because releasing a block notifies waiters
  const std::lock_guard lock(mutex_);
  if (peer(to).is_closed) return;
  unsent.swap(peer(to).items);
  add_locked(to, {.entry = std::move(last), .body = {}, .receipt_of = {}}, true);
  peer(to).is_closed = true;
}

void Outbox::add_locked(int to, Item item, bool is_urgent) {
  if (peer(to).is_closed) return;
  peer(to).items.push_back(std::move(item));
  if (is_urgent) return make_due(to);
  if (!std::exchange(has_deferred_, true)) must_schedule_ = true;
}

void Outbox::make_due(int to) {
  if (!std::exchange(peer(to).is_due, true)) due_.push_back(to);
}

void Outbox::make_all_due() {
  has_deferred_ = false;
  for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
    if (!peer(to).items.empty()) make_due(to);
  }
}

Outbox::Transmission Outbox::next_frame(int to) {
  Transmission next{.peers = {to}, .entries = {}, .body = {}};
  std::size_t bytes = 0;
  auto& items = peer(to).items;
  const std::uint64_t multicast = items.front().multicast;
  while (!items.empty() && next.body.bytes.empty()) {
    Item& item = items.front();
    bytes += entry_bytes + item.entry.payload.size();
    if (bytes > max_header_bytes_) break;
    next.entries.push_back(std::move(item.entry));
    next.body = std::move(item.body);
    next.is_last = item.is_last;
    items.pop_front();
  }
  LEVADA_ASSERT(!next.entries.empty(), "each entry fits into one frame");
  const bool is_multicast = multicast != 0 && next.entries.size() == 1;
  for (std::size_t i = 0; is_multicast && i < due_.size(); ++i) {
    auto& theirs = peer(due_[i]).items;
    if (theirs.empty() || theirs.front().multicast != multicast) continue;
    theirs.pop_front();
    next.peers.push_back(due_[i]);
  }
  if (!items.empty()) make_due(to);
  return next;
}

void Outbox::flush(const Failed& failed) noexcept {
  std::unique_lock lock(mutex_);
  if (std::exchange(must_schedule_, false)) {
    lock.unlock();
    bool is_scheduled = true;
    try {
      transport_->schedule_flush(Clock::now() + batching_delay);
    } catch (const std::exception&) {
      is_scheduled = false;  // send now
    }
    lock.lock();
    if (!is_scheduled) make_all_due();
  }
  if (is_flushing_) return;
  is_flushing_ = true;
  while (!due_.empty()) {
    const int to = due_.front();
    due_.pop_front();
    peer(to).is_due = false;
    if (peer(to).items.empty()) continue;
    Transmission next = next_frame(to);
    lock.unlock();
    try {
      transport_->send(next.peers, {.header = encode(next.entries), .body = next.body});
      if (next.is_last) transport_->close(to);
    } catch (const std::exception& error) {
      for (const int each : next.peers) failed(each, error.what());
    }
    next = {};  // releasing its block may notify waiters
    lock.lock();
  }
  is_flushing_ = false;
}

void Outbox::flush_deferred(const Failed& failed) noexcept {
  {
    const std::lock_guard lock(mutex_);
    make_all_due();
  }
  flush(failed);
}

}  // namespace levada::p2p
