#include "levada/engine/inproc/stream.h"

#include <algorithm>

#include "levada/engine/ranks.h"

namespace levada::inproc {

Stream::Stream(int from, std::vector<int> to, int window)
    : from_(from), window_(window), ranks_(std::move(to)), takers_(ranks_.size()) {}

int Stream::taker(int rank) const {
  return rank_in(ranks_, rank);
}

void Stream::publish(Message message) {
  messages_.push_back(std::move(message));
  retire();
}

bool Stream::has_message(int taker) const {
  const Taker& t = takers_[index(taker)];
  return t.open && t.next < first_ + messages_.size();
}

const Message& Stream::next(int taker) const {
  return messages_[takers_[index(taker)].next - first_];
}

Message Stream::take(int taker) {
  Message message = next(taker);
  ++takers_[index(taker)].next;
  retire();
  return message;
}

void Stream::close_taker(int taker) {
  takers_[index(taker)].open = false;
  retire();
}

bool Stream::is_over() const {
  return !sender_open_ && std::none_of(takers_.begin(), takers_.end(), [](const Taker& t) { return t.open; });
}

std::vector<Engine::Holder> Stream::holders() const {
  std::vector<Engine::Holder> found;
  for (std::size_t i = 0; i < takers_.size(); ++i) {
    const Taker& t = takers_[i];
    const int not_taken = t.open ? static_cast<int>(first_ + messages_.size() - t.next) : 0;
    const int leased = t.leased->load();
    if (not_taken + leased > 0) found.push_back({.rank = ranks_[i], .not_received = not_taken, .leased = leased});
  }
  return found;
}

void Stream::retire() {
  std::uint64_t slowest = first_ + messages_.size();
  for (const Taker& t : takers_) {
    if (t.open) slowest = std::min(slowest, t.next);
  }
  for (; first_ < slowest; ++first_) messages_.pop_front();
}

}  // namespace levada::inproc
