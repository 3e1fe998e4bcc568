// The lead's part: receives all reports, decides by feed_protocol::Lead, notifies all ranks.
#pragma once

#include <string>
#include <vector>

#include "levada/feed/wiring.h"

namespace levada {

/// On the first reader alone; one thread at a time.
class FeedLead {
 public:
  /// `remedy`: Source::difference_remedy().
  FeedLead(const FeedWiring& wiring, std::string remedy);

  /// Receives the reports that have arrived, and sends the decisions that there is room for.
  void advance();
  /// Applies what this rank itself has to report.
  void apply(const feed_protocol::Event& event);
  /// Returns whether the end is decided: nothing more needs to be read.
  bool has_end() const { return decisions_.end().has_value(); }
  /// Returns whether something has been decided that is still to be sent.
  bool has_news() const;
  /// Returns what kept the news from being sent when that was last tried.
  const Blocked& blocked() const { return blocked_; }
  /// Returns the channels that more reports may arrive on.
  const std::vector<Channel*>& open_reports() const { return open_reports_; }

 private:
  void receive();
  void send();
  /// The next thing that the ranks have not been sent.
  std::optional<feed_protocol::Event> news() const;

  const FeedWiring& wiring_;
  feed_protocol::Lead decisions_;
  std::vector<Channel*> open_reports_;
  std::optional<feed_protocol::Left> departure_sent_;
  std::int64_t granted_sent_ = 0;
  bool end_sent_ = false;
  Blocked blocked_;
};

}  // namespace levada
