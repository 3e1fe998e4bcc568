// The reading side of a feed: rounds are read ahead by a thread, or one by one by the caller; a thread sends what there
// was no room for, receives the other ranks' reports, and sends them the end and which rank has left.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "levada/feed/lead.h"
#include "levada/feed/rounds.h"

namespace levada {

class FeedReader {
 public:
  /// Starts reading. `wiring`, `reporter` and the options' trace outlive it.
  FeedReader(const FeedWiring& wiring, Reporter& reporter, FeedRounds rounds, const FeedOptions& options);
  /// stop().
  ~FeedReader();

  /// Reads round `round` and sends it, on the calling thread, unless that has been done or the thread reads ahead;
  /// whether it did.
  /// Calls `waiting` again and again while it waits for memory, and throws what that throws; PeerLost; Timeout, after
  /// aborting the group, where no memory was to be had.
  bool read_now(std::int64_t round, const std::function<void()>& waiting);
  bool is_ahead() const { return ahead_; }
  /// Ends the thread, whatever it has not sent.
  void stop();
  /// Adds the counts of a reader.
  void add_to(FeedStats& stats) const;

 private:
  struct Interrupted {};

  void run() noexcept;
  /// What the thread has to wait for.
  struct WaitSet {
    std::vector<Channel*> reports;
    std::vector<Channel*> room;
    std::size_t memory = 0;
    std::optional<std::int64_t> held;  ///< the round that waits for room
    int slow = -1;                     ///< the rank that makes none

    void add(const Blocked& blocked) {
      if (blocked.room != nullptr) room.push_back(blocked.room);
      memory = blocked.memory;
    }
  };

  /// Returns whether a round was read or sent.
  bool advance(std::unique_lock<std::mutex>& driving);
  /// As far as the lead's work goes; for a thread that reads.
  void lead_meanwhile();
  WaitSet wait_set();
  void wait(const WaitSet& awaited);
  bool finished() const;
  /// `driving` is released while it reads.
  void read_round(std::unique_lock<std::mutex>& driving);
  bool send_round();
  void report(const feed_protocol::Event& event);
  /// Says for which rank this one waits, and which that is: the one furthest behind.
  int post_full() const;
  Block allocate(std::size_t bytes);
  /// Throws InvalidArgument where a block of `bytes` will not fit beside this round's others, though ranks hold nothing
  /// of what was sent.
  void expect_to_fit(std::size_t bytes, std::span<Channel* const> sent);
  /// waiting_(). Throws Interrupted for what that throws, which is in thrown_.
  void call_waiting();
  /// A channel of the prepared round that has no room, the same as before if that has none; null if all have.
  Channel* full_channel();
  void sample_memory() const;
  /// Says for whom this reader waits; since when, if it has said so before, remains.
  void post(std::string_view operation, int waiting_for, std::string_view detail) const;

  const FeedWiring& wiring_;
  Reporter& reporter_;
  FeedRounds rounds_;
  Duration timeout_;
  Duration remind_after_;
  TraceLog* trace_;
  std::optional<FeedLead> lead_;
  std::vector<FeedRounds::Outgoing> prepared_;
  Channel* slowest_ = nullptr;  ///< which had no room the last time one had none
  FeedPosition next_;           ///< of the round to send next
  bool reported_end_ = false;
  bool is_reading_ = false;        ///< with driving_ released
  std::uint64_t round_bytes_ = 0;  ///< of the blocks that this round has taken
  mutable Status posted_;          ///< last

  mutable std::mutex stats_mutex_;
  ReadStats stats_;
  std::uint64_t sent_bytes_ = 0;
  const bool ahead_;
  std::function<void()> waiting_;      ///< of the caller that is in read_now()
  std::exception_ptr thrown_;          ///< by waiting_
  std::mutex driving_;                 ///< held by the thread that advances, but while it reads
  std::atomic<bool> has_news_{false};  ///< the thread has to look again what there is to do
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace levada
