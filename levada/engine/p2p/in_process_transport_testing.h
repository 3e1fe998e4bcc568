// A transport between threads of one process, with which tests and sanitizers exercise the engine. For tests only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/collect.h"
#include "levada/engine/p2p/p2p.h"

namespace levada::p2p::test {

inline Deadline limit() {
  return Deadline::after(std::chrono::seconds(20));
}

/// Publishes `bytes` that are all `value`.
inline void send(Engine& engine, Channel& channel, std::size_t bytes, std::byte value) {
  Block block = allocate(engine, bytes, limit(), "test");
  std::memset(block.memory().data(), static_cast<int>(value), bytes);
  publish(engine, channel, std::move(block), bytes, limit(), "test");
}

/// The mailboxes of all ranks. A thread per rank empties each, until all of that rank's peers have closed. The
/// destructor waits for that, so engines must be destroyed first.
class LoopbackNetwork {
 public:
  struct Packet {
    int from = -1;
    Frame frame = {};  ///< empty header if `from` has been lost
  };
  struct Settings {
    bool flushes = true;      ///< whether deferred frames are ever sent without further calls
    bool has_threads = true;  ///< if false, Transport::progress() delivers packets
    std::size_t max_header_bytes = std::size_t{64} << 10;
  };

  explicit LoopbackNetwork(int ranks) : LoopbackNetwork(ranks, Settings()) {}
  LoopbackNetwork(int ranks, Settings settings) : mailboxes_(static_cast<std::size_t>(ranks)), settings_(settings) {}
  ~LoopbackNetwork() {
    for (std::thread& thread : threads_) thread.join();
  }
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  const Settings& settings() const { return settings_; }
  int size() const { return static_cast<int>(mailboxes_.size()); }
  void send(int to, Packet packet) {
    const std::lock_guard lock(mutex_);
    if (const auto held = held_.find({packet.from, to}); held != held_.end()) {
      held->second.push_back(std::move(packet));
      return;
    }
    put(to, std::move(packet));
  }
  /// Holds back packets from one rank to another, as a slow link does, until release().
  void hold(int from, int to) {
    const std::lock_guard lock(mutex_);
    held_[{from, to}];
  }
  void release(int from, int to) {
    const std::lock_guard lock(mutex_);
    for (Packet& packet : held_[{from, to}]) put(to, std::move(packet));
    held_.erase({from, to});
  }
  void schedule_flush(int rank, Clock::time_point at) {
    if (!settings_.flushes) return;
    const std::lock_guard lock(mutex_);
    mailbox(rank).flush_at = at;
    changed_.notify_all();
  }
  void start(int rank, std::shared_ptr<Receiver> receiver) {
    const std::lock_guard lock(mutex_);
    mailbox(rank).receiver = receiver.get();
    if (!settings_.has_threads) return;
    threads_.emplace_back([this, rank, receiver = std::move(receiver)] {
      while (!receiver->all_closed()) deliver(*receiver, next(rank));
    });
  }
  /// Delivers packets that have arrived for a rank; for networks without threads.
  void progress(int rank) {
    if (settings_.has_threads) return;
    while (true) {
      std::unique_lock lock(mutex_);
      if (mailbox(rank).packets.empty()) break;
      const Packet packet = std::move(mailbox(rank).packets.front());
      mailbox(rank).packets.pop_front();
      lock.unlock();
      deliver(*mailbox(rank).receiver, packet);
    }
    mailbox(rank).receiver->flush_deferred();
  }
  /// Acts as if the rank's process had died: its packets are dropped, and it and its peers are lost to each other.
  void lose(int rank) {
    mailbox(rank).is_lost = true;
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      send(other, {.from = rank});
      send(rank, {.from = other});
    }
  }
  bool is_lost(int rank) { return mailbox(rank).is_lost; }
  /// Makes sends to this rank fail from now on, without an earlier report.
  void disconnect(int rank) { mailbox(rank).is_disconnected = true; }
  bool is_disconnected(int rank) { return mailbox(rank).is_disconnected; }
  /// Returns the number of packets for a rank so far.
  int num_packets(int rank) {
    const std::lock_guard lock(mutex_);
    return mailbox(rank).num_packets;
  }
  /// Returns the bytes of frames sent between hosts so far.
  std::uint64_t crossed_bytes() const { return crossed_bytes_; }
  /// Returns how many of those frames had a body: one large message each.
  std::uint64_t crossed_bodies() const { return crossed_bodies_; }
  /// Returns the bytes of those bodies. Headers are left out, because they carry any small messages that wait.
  std::uint64_t crossed_bytes_of_bodies() const { return crossed_bytes_of_bodies_; }
  void count_crossing(const Frame& frame) {
    crossed_bytes_ += frame.header.bytes.size() + frame.body.bytes.size();
    if (frame.body.bytes.empty()) return;
    ++crossed_bodies_;
    crossed_bytes_of_bodies_ += frame.body.bytes.size();
  }

 private:
  struct Mailbox {
    std::deque<Packet> packets;
    int num_packets = 0;
    std::optional<Clock::time_point> flush_at;
    Receiver* receiver = nullptr;
    std::atomic<bool> is_lost = false;
    std::atomic<bool> is_disconnected = false;
  };
  /// With mutex_ held.
  void put(int to, Packet packet) {
    ++mailbox(to).num_packets;
    mailbox(to).packets.push_back(std::move(packet));
    changed_.notify_all();
  }
  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }

  /// Returns the next packet, or one from rank -1 if deferred frames are due.
  Packet next(int rank) {
    std::unique_lock lock(mutex_);
    Mailbox& own = mailbox(rank);
    while (own.packets.empty()) {
      if (own.flush_at && Clock::now() >= *own.flush_at) {
        own.flush_at.reset();
        return {};
      }
      if (own.flush_at) changed_.wait_until(lock, *own.flush_at);
      else changed_.wait(lock);
    }
    Packet first = std::move(own.packets.front());
    own.packets.pop_front();
    return first;
  }

  static void deliver(Receiver& receiver, const Packet& packet) {
    const auto& [from, frame] = packet;
    if (from < 0) return receiver.flush_deferred();
    if (frame.header.bytes.empty()) return receiver.lost(from, "the test says so");
    Block body = receiver.room_for_body(from, frame.header.bytes);
    if (body) copy_payload(body.memory().data(), frame.body.bytes.data(), frame.body.bytes.size());
    receiver.deliver(from, frame.header.bytes, std::move(body), frame.body.bytes.size());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Mailbox> mailboxes_;
  std::map<std::pair<int, int>, std::vector<Packet>> held_;  ///< by sender and receiver
  Settings settings_;
  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> crossed_bytes_ = 0, crossed_bodies_ = 0, crossed_bytes_of_bodies_ = 0;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackNetwork& network, int rank, std::vector<int> host_of)
      : network_(network), rank_(rank), host_of_(std::move(host_of)) {}

  int rank() const override { return rank_; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return "loopback"; }
  std::size_t max_header_bytes() const override { return network_.settings().max_header_bytes; }
  void start(std::shared_ptr<Receiver> receiver) override {
    receiver_ = receiver.get();  // which owns this transport
    network_.start(rank_, std::move(receiver));
  }
  void send(std::span<const int> peers, const Frame& frame) override {
    if (network_.is_lost(rank_)) return;
    for (const int peer : peers) {
      if (host_of(peer) != host_of(rank_)) {
        network_.count_crossing(frame);
      }
      if (network_.is_disconnected(peer)) receiver_->lost(peer, "it is disconnected");
      else network_.send(peer, {.from = rank_, .frame = frame});
    }
  }
  void schedule_flush(Clock::time_point at) override { network_.schedule_flush(rank_, at); }
  Duration progress() override {
    network_.progress(rank_);
    return network_.settings().has_threads ? Duration::max() : std::chrono::milliseconds(1);
  }

 private:
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }

  LoopbackNetwork& network_;
  int rank_;
  std::vector<int> host_of_;
  Receiver* receiver_ = nullptr;
};

inline std::vector<std::shared_ptr<Engine>> make_engines(LoopbackNetwork& network, const Options& options = {}) {
  std::vector<int> host_of(static_cast<std::size_t>(network.size()));
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) host_of[rank] = static_cast<int>(rank / 2);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < network.size(); ++rank) {
    engines.push_back(make_engine(std::make_shared<LoopbackTransport>(network, rank, host_of), options));
  }
  return engines;
}

/// Runs `body` on one thread per rank. A failing rank aborts the group. Returns one line per failure.
inline std::string run_ranks(int size, const std::function<void(std::shared_ptr<Engine>, LoopbackNetwork&)>& body,
                             const Options& options = {}) {
  LoopbackNetwork network(size);
  std::mutex mutex;
  std::string failures;
  const auto run_one = [&](std::shared_ptr<Engine> engine) {
    try {
      body(engine, network);
    } catch (const std::exception& error) {
      engine->abort(error.what());
      const std::lock_guard lock(mutex);
      failures += std::string(error.what()) + "\n";
    }
  };
  std::vector<std::thread> threads;
  for (auto& engine : make_engines(network, options)) threads.emplace_back(run_one, std::move(engine));
  for (std::thread& thread : threads) thread.join();
  return failures;
}
inline std::string run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body,
                             const Options& options = {}) {
  return run_ranks(
      size, [&](std::shared_ptr<Engine> engine, LoopbackNetwork&) { body(std::move(engine)); }, options);
}

}  // namespace levada::p2p::test
