// The lead's part: hears all reports, decides by feed_protocol::Lead, tells everybody.
#pragma once

#include "levada/feed/wiring.h"

namespace levada {

/// On the first reader alone; one thread at a time.
class FeedLead {
 public:
  explicit FeedLead(const FeedWiring& wiring) : wiring_(wiring), decisions_(static_cast<int>(wiring.readers.size())) {}

  /// Hears what there is, says what there is room for; whether that was anything.
  bool advance();
  /// What this rank itself has to report.
  void apply(const feed_protocol::Event& event);
  /// Whether the end is decided: nothing more needs to be read.
  bool has_end() const { return decisions_.end().has_value(); }
  /// Whether something has been decided that is still to be told.
  bool has_news() const;
  /// What kept the news from being told when it was last tried.
  const Lacking& lacking() const { return lacking_; }

 private:
  bool hear();
  bool tell();
  /// The next thing that the ranks have not been told.
  std::optional<feed_protocol::Event> news() const;

  const FeedWiring& wiring_;
  feed_protocol::Lead decisions_;
  std::optional<feed_protocol::Left> departure_sent_;
  std::int64_t granted_sent_ = 0;
  bool end_sent_ = false;
  Lacking lacking_;
};

}  // namespace levada
