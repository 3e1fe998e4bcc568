#include "levada/feed/lead.h"

namespace levada {

bool FeedLead::advance() {
  const bool heard = hear();
  return tell() || heard;
}

void FeedLead::apply(const feed_protocol::Event& event) {
  if (const auto* ready = std::get_if<feed_protocol::Ready>(&event)) decisions_.apply(*ready);
  if (const auto* stopped = std::get_if<feed_protocol::Stopped>(&event)) decisions_.apply(*stopped);
  if (const auto* asked = std::get_if<feed_protocol::StopAsked>(&event)) decisions_.apply(*asked);
  if (const auto* left = std::get_if<feed_protocol::Left>(&event)) decisions_.apply(*left);
}

bool FeedLead::has_news() const {
  return news().has_value();
}

std::optional<feed_protocol::Event> FeedLead::news() const {
  // The end first: a rank that left where the feed ends anyway is no error.
  if (decisions_.end() && !end_sent_) return feed_protocol::Ended{*decisions_.end()};
  if (const auto& left = decisions_.departure(); left && left != departure_sent_) return *left;
  const bool has_grant = wiring_.readers.size() > 1 && !end_sent_ && decisions_.granted() > granted_sent_;
  if (!has_grant) return std::nullopt;
  return feed_protocol::Granted{decisions_.granted()};
}

bool FeedLead::hear() {
  bool heard = false;
  for (const auto& channel : wiring_.reports) {
    while (const auto event = try_receive(*wiring_.engine, *channel).event) {
      apply(*event);
      heard = true;
    }
  }
  return heard;
}

bool FeedLead::tell() {
  bool told = false;
  while (const auto word = news()) {
    lacking_ = try_send(*wiring_.engine, *wiring_.decisions, *word);
    if (lacking_) break;
    if (const auto* left = std::get_if<feed_protocol::Left>(&*word)) departure_sent_ = *left;
    if (const auto* granted = std::get_if<feed_protocol::Granted>(&*word)) granted_sent_ = granted->rounds;
    if (std::holds_alternative<feed_protocol::Ended>(*word)) end_sent_ = true;
    told = true;
  }
  return told;
}

}  // namespace levada
