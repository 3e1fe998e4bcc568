// The reading side of a feed. Rounds are read ahead by a thread, or one by one by the caller. The thread sends rounds
// that had to wait for room and, on the lead, receives the other ranks' reports and sends the end and departures.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "levada/feed/lead.h"
#include "levada/feed/rounds.h"

namespace levada {

struct FeedStats;

class FeedReader {
 public:
  /// Starts reading. `wiring`, `reporter` and the options' trace must outlive it.
  FeedReader(const FeedWiring& wiring, Reporter& reporter, FeedRounds rounds, const FeedOptions& options);
  /// Calls stop().
  ~FeedReader();

  /// Reads round `round` on the calling thread and sends it, unless that has already been done or the thread reads
  /// ahead. Returns whether it did. Calls `waiting` repeatedly while it waits for memory, and rethrows its exceptions.
  /// Throws PeerLost, or Timeout, after aborting the group, if no memory becomes free.
  bool read_now(std::int64_t round, const std::function<void()>& waiting);
  bool is_ahead() const { return ahead_; }
  /// Stops the thread, even if it still has something to send.
  void stop();
  /// Adds the reader's counters.
  void add_to(FeedStats& stats) const;

 private:
  struct Interrupted {};

  void run() noexcept;
  /// The conditions that the thread has to wait for.
  struct WaitSet {
    std::vector<Channel*> reports;
    std::vector<Channel*> room;
    std::size_t memory = 0;
    std::optional<std::int64_t> held;  ///< the round that waits for room
    int slow = -1;                     ///< the rank that has not made room

    void add(const SendObstacle& blocked) {
      if (blocked.room != nullptr) room.push_back(blocked.room);
      memory = blocked.memory;
    }
  };

  /// Returns whether a round was read or sent.
  bool advance(std::unique_lock<std::mutex>& driving);
  /// Returns whether a stop must wait, because a round has been begun that only its sending delivers.
  bool holds_stop() const { return !ahead_ && (is_reading_ || !prepared_.empty() || rounds_.is_interrupted()); }
  /// Advances the lead if the thread is in the middle of a read.
  void lead_meanwhile();
  WaitSet wait_set();
  void wait(const WaitSet& awaited);
  bool finished() const;
  /// Releases `driving` while reading.
  void read_round(std::unique_lock<std::mutex>& driving);
  bool send_round();
  void report(const feed_protocol::Event& event);
  /// Posts which rank this reader waits for, the one furthest behind, and returns that rank.
  int post_full() const;
  Block allocate(std::size_t bytes);
  /// Throws InvalidArgument if a block of `bytes` will never fit in addition to this round's other blocks, even though
  /// no rank holds any message that was sent.
  void expect_to_fit(std::size_t bytes, std::span<Channel* const> sent);
  /// Calls waiting_(). If that throws, stores the exception in thrown_ and throws Interrupted.
  void call_waiting();
  /// Returns a channel of the prepared round that has no room, preferably the same one as before; null if all have
  /// room.
  Channel* full_channel();
  void sample_memory() const;
  /// Posts which rank this reader waits for. Keeps the start time if that was already posted.
  void post(std::string_view operation, int waiting_for, std::string_view detail) const;

  const FeedWiring& wiring_;
  Reporter& reporter_;
  FeedRounds rounds_;
  Duration timeout_;
  Duration remind_after_;
  TraceLog* trace_;
  std::optional<FeedLead> lead_;
  std::vector<FeedRounds::Outgoing> prepared_;
  Channel* slowest_ = nullptr;  ///< the channel that had no room last time
  FeedPosition next_;           ///< the next round to send
  bool reported_end_ = false;
  bool is_reading_ = false;        ///< with driving_ released
  std::uint64_t round_bytes_ = 0;  ///< size of the blocks that this round has allocated
  mutable Status posted_;          ///< status that was posted last

  mutable std::mutex stats_mutex_;
  ReadStats stats_;
  std::uint64_t sent_bytes_ = 0;
  const bool ahead_;
  std::function<void()> waiting_;      ///< callback of the caller that is in read_now()
  std::exception_ptr thrown_;          ///< exception from waiting_
  std::mutex driving_;                 ///< held by the thread that advances, except while it reads
  std::atomic<bool> has_news_{false};  ///< the thread must look for work again
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace levada
