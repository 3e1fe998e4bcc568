#include "levada/feed/lead.h"

namespace levada {

bool FeedLead::advance() {
  const bool heard = hear();
  return tell() || heard;
}

void FeedLead::apply(const feed_protocol::Event& event) {
  if (const auto* ready = std::get_if<feed_protocol::Ready>(&event)) decisions_.apply(*ready);
  if (const auto* stopped = std::get_if<feed_protocol::Stopped>(&event)) decisions_.apply(*stopped);
  if (const auto* left = std::get_if<feed_protocol::Left>(&event)) decisions_.apply(*left);
}

bool FeedLead::has_news() const {
  if (end_sent_) return false;
  return decisions_.end() || (wiring_.readers.size() > 1 && decisions_.granted() > granted_sent_);
}

bool FeedLead::hear() {
  bool heard = false;
  for (const auto& channel : wiring_.reports) {
    while (const auto event = try_receive(*wiring_.engine, *channel)) {
      apply(*event);
      heard = true;
    }
  }
  return heard;
}

bool FeedLead::tell() {
  if (!has_news()) return false;
  const auto& end = decisions_.end();
  const std::int64_t granted = decisions_.granted();
  const feed_protocol::Event word =
      end ? feed_protocol::Event(feed_protocol::Ended{*end}) : feed_protocol::Event(feed_protocol::Granted{granted});
  lacking_ = try_send(*wiring_.engine, *wiring_.decisions, word);
  if (lacking_) return false;
  granted_sent_ = granted;
  end_sent_ = end.has_value();
  return true;
}

}  // namespace levada
