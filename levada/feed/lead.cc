#include "levada/feed/lead.h"

#include <utility>

namespace levada {

FeedLead::FeedLead(const FeedWiring& wiring, std::string remedy, bool reads_ahead)
    : wiring_(wiring),
      decisions_(
          {.ranks = wiring.readers, .hosts = wiring.reader_hosts, .units = wiring.units, .remedy = std::move(remedy)},
          reads_ahead) {
  for (const auto& channel : wiring_.reports) open_reports_.push_back(channel.get());
}

void FeedLead::advance(bool holds_stop) {
  receive();
  if (held_stop_ && !holds_stop) decisions_.apply(*std::exchange(held_stop_, std::nullopt));
  send();
}

void FeedLead::apply(const feed_protocol::Event& event) {
  if (const auto* ready = std::get_if<feed_protocol::Ready>(&event)) decisions_.apply(*ready);
  if (const auto* stopped = std::get_if<feed_protocol::Stopped>(&event)) decisions_.apply(*stopped);
  if (const auto* asked = std::get_if<feed_protocol::StopAsked>(&event); asked && !held_stop_) held_stop_ = *asked;
  if (const auto* left = std::get_if<feed_protocol::Left>(&event)) decisions_.apply(*left);
}

bool FeedLead::has_news() const {
  return news().has_value();
}

std::optional<feed_protocol::Event> FeedLead::news() const {
  // The end takes precedence: a departure at the end of the feed is not an error.
  if (decisions_.end() && !end_sent_) return feed_protocol::Ended{*decisions_.end()};
  if (const auto& left = decisions_.departure(); left && left != departure_sent_) return *left;
  const bool has_grant = wiring_.readers.size() > 1 && !end_sent_ && decisions_.granted() > granted_sent_;
  if (!has_grant) return std::nullopt;
  return feed_protocol::Granted{decisions_.granted()};
}

void FeedLead::receive() {
  // Checks all channels at once, in case nothing has arrived.
  if (wiring_.engine->wait({.receive = open_reports_}, Deadline::now()) != Woken::ready) return;
  std::erase_if(open_reports_, [&](Channel* channel) {
    while (true) {
      const auto [event, ended] = try_receive(*wiring_.engine, *channel);
      if (!event) return ended;
      apply(*event);
    }
  });
}

void FeedLead::send() {
  while (const auto event = news()) {
    blocked_ = try_send(*wiring_.engine, *wiring_.decisions, *event);
    if (blocked_) return;
    if (const auto* left = std::get_if<feed_protocol::Left>(&*event)) departure_sent_ = *left;
    if (const auto* granted = std::get_if<feed_protocol::Granted>(&*event)) granted_sent_ = granted->rounds;
    if (std::holds_alternative<feed_protocol::Ended>(*event)) end_sent_ = true;
  }
}

}  // namespace levada
