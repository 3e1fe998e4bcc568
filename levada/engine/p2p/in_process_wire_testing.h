// A wire between threads of one process, so that the engine can be tested, and watched by sanitizers, without any
// transport. Only for tests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/copy.h"
#include "levada/engine/p2p/p2p.h"

namespace levada::p2p::test {

/// The mailboxes of all ranks, each emptied by a thread of its own, beside which another sends late, until all of that
/// rank's peers are out, for which its destructor waits: engines end before it.
class Post {
 public:
  struct Letter {
    int from = -1;
    std::optional<Frame> frame = {};  ///< none: `from` has been lost
  };

  /// `late`: whether what waits for company goes without any, after a while.
  explicit Post(int ranks, bool late = true) : boxes_(static_cast<std::size_t>(ranks)), late_(late) {}
  ~Post() {
    for (std::thread& thread : threads_) thread.join();
  }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  int size() const { return static_cast<int>(boxes_.size()); }
  void put(int to, Letter letter) {
    const std::lock_guard lock(mutex_);
    ++box(to).came;
    box(to).letters.push_back(std::move(letter));
    changed_.notify_all();
  }
  void deliver_to(int rank, std::shared_ptr<Receiver> receiver) {
    const std::lock_guard lock(mutex_);
    if (late_) threads_.emplace_back([receiver] { receiver->send_late(); });
    threads_.emplace_back([this, rank, receiver = std::move(receiver)] {
      while (!receiver->all_are_out()) deliver(*receiver, get(rank));
    });
  }
  /// As if the rank's process had died: what it sends goes nowhere, and nobody is there any more for it either.
  void lose(int rank) {
    box(rank).lost = true;
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      put(other, {.from = rank});
      put(rank, {.from = other});
    }
  }
  /// How many letters there have been for it.
  int came(int rank) {
    const std::lock_guard lock(mutex_);
    return box(rank).came;
  }
  bool is_lost(int rank) { return box(rank).lost; }

 private:
  struct Box {
    std::deque<Letter> letters;
    int came = 0;
    std::atomic<bool> lost = false;
  };
  Box& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }

  Letter get(int rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !box(rank).letters.empty(); });
    Letter next = std::move(box(rank).letters.front());
    box(rank).letters.pop_front();
    return next;
  }

  static void deliver(Receiver& receiver, const Letter& letter) {
    if (!letter.frame) return receiver.lost(letter.from, "the test says so");
    const Frame& frame = *letter.frame;
    Block body = receiver.room_for_body(letter.from, frame.head.bytes);
    if (body) copy_payload(body.memory().data(), frame.body.bytes.data(), frame.body.bytes.size());
    receiver.deliver(letter.from, frame.head.bytes, std::move(body));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Box> boxes_;
  bool late_;
  std::vector<std::thread> threads_;
};

class InProcessWire final : public Wire {
 public:
  InProcessWire(Post& post, int rank, std::vector<int> host_of)
      : post_(post), rank_(rank), host_of_(std::move(host_of)) {}

  int rank() const override { return rank_; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return "in-process"; }
  void start(std::shared_ptr<Receiver> receiver) override { post_.deliver_to(rank_, std::move(receiver)); }
  void send(int peer, Frame frame) override {
    if (!post_.is_lost(rank_)) post_.put(peer, {.from = rank_, .frame = std::move(frame)});
  }

 private:
  Post& post_;
  int rank_;
  std::vector<int> host_of_;
};

inline std::vector<std::shared_ptr<Engine>> make_engines(Post& post, const Options& options = {}) {
  std::vector<int> host_of(static_cast<std::size_t>(post.size()));
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) host_of[rank] = static_cast<int>(rank / 2);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < post.size(); ++rank) {
    engines.push_back(make_engine(std::make_shared<InProcessWire>(post, rank, host_of), options));
  }
  return engines;
}

/// Runs `body` on a thread a rank; a sentence for each that failed, after which the others' group ends.
inline std::string run_ranks(int size, const std::function<void(std::shared_ptr<Engine>)>& body) {
  std::mutex mutex;
  std::string failures;
  const auto run_one = [&](std::shared_ptr<Engine> engine) {
    try {
      body(engine);
    } catch (const std::exception& error) {
      engine->abort(error.what());
      const std::lock_guard lock(mutex);
      failures += std::string(error.what()) + "\n";
    }
  };
  Post post(size);
  std::vector<std::thread> threads;
  for (auto& engine : make_engines(post)) threads.emplace_back(run_one, std::move(engine));
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace levada::p2p::test
