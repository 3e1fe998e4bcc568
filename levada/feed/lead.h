// The lead's side of a feed: receives all reports, decides with feed_protocol::Lead, and notifies all ranks.
#pragma once

#include <string>
#include <vector>

#include "levada/feed/wiring.h"

namespace levada {

/// Exists only on the first reader. One thread at a time.
class FeedLead {
 public:
  /// `remedy`: Source::difference_remedy(). `reads_ahead`: whether readers read ahead of their callers.
  FeedLead(const FeedWiring& wiring, std::string remedy, bool reads_ahead);

  /// Receives the reports that have arrived, and sends as many decisions as there is room for. With `holds_stop`, a
  /// rank's request to stop waits for a later call.
  void advance(bool holds_stop = false);
  /// Applies a report of this rank.
  void apply(const feed_protocol::Event& event);
  /// Returns whether the end is decided, so that nothing more needs to be read.
  bool has_end() const { return decisions_.end().has_value(); }
  /// Returns whether a decision is still to be sent.
  bool has_news() const;
  /// Returns what blocked the last attempt to send.
  const SendObstacle& blocked() const { return blocked_; }
  /// Returns the channels on which reports may still arrive.
  const std::vector<Channel*>& open_reports() const { return open_reports_; }

 private:
  void receive();
  void send();
  /// Returns the next decision to send, if any.
  std::optional<feed_protocol::Event> news() const;

  const FeedWiring& wiring_;
  feed_protocol::Lead decisions_;
  std::vector<Channel*> open_reports_;
  std::optional<feed_protocol::StopAsked> held_stop_;
  std::optional<feed_protocol::Left> departure_sent_;
  std::int64_t granted_sent_ = 0;
  bool end_sent_ = false;
  SendObstacle blocked_;
};

}  // namespace levada
