// The reading side of a feed: a thread that reads rounds ahead and sends them as their takers make room.
#pragma once

#include <atomic>
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

  /// Rounds before number `end` are wanted; without effect where the options let it read ahead. Any thread.
  void demand(std::int64_t end);
  /// Ends the thread, whatever it has not sent.
  void stop();
  ReadStats stats() const;

 private:
  struct Interrupted {};

  void run() noexcept;
  bool advance();
  void wait();
  bool finished() const;
  bool may_read() const;
  void read_round();
  bool send_round();
  void report(const feed_protocol::Event& event);
  /// Says for which rank this one waits, and which that is.
  int post_full(Channel& channel) const;
  Block allocate(std::size_t bytes);
  /// The first channel of the prepared round that has no room; null if all have.
  Channel* full_channel() const;
  void sample_memory() const;
  /// Says for whom this reader waits, and since when.
  void post(std::string_view operation, int waiting_for, std::string_view detail) const;

  const FeedWiring& wiring_;
  Reporter& reporter_;
  FeedRounds rounds_;
  Duration timeout_;
  TraceLog* trace_;
  std::optional<FeedLead> lead_;
  std::vector<FeedRounds::Outgoing> prepared_;
  std::int64_t round_ = 0;  ///< the next one to send
  bool reported_end_ = false;

  mutable std::mutex stats_mutex_;
  ReadStats stats_;
  std::atomic<std::int64_t> demanded_;  ///< rounds that may be read
  std::atomic<bool> heed_{false};       ///< stop_ or demanded_ has changed
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace levada
