// What a channel is between its two ends: messages, who has taken which, which ends are closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::inproc {

struct Message {
  ByteView bytes;
  std::shared_ptr<const void> hold;  ///< the sender's block
};

/// State alone, without locks or waiting: its group's mutex guards it. Takers are named by their place in `to`.
class Stream {
 public:
  Stream(int from, std::vector<int> to, int window);

  int from() const { return from_; }
  int window() const { return window_; }
  const std::vector<int>& takers() const { return ranks_; }
  /// The place of `rank` among the takers, or -1.
  int taker(int rank) const;

  bool has_room() const { return messages_.size() < static_cast<std::size_t>(window_); }
  /// Needs room. The message is dropped at once when no taker is left.
  void publish(Message message);
  void close_sender() { sender_open_ = false; }
  bool sender_open() const { return sender_open_; }

  bool has_message(int taker) const;
  bool is_open(int taker) const { return takers_[index(taker)].open; }
  /// Needs a message.
  const Message& next(int taker) const;
  /// Needs a message; it leaves the window once all open takers have taken it.
  Message take(int taker);
  void close_taker(int taker);

  /// Whether every end is closed.
  bool is_over() const;
  /// How many leases `taker` holds; counted down by the leases themselves.
  const std::shared_ptr<std::atomic<int>>& leased(int taker) const { return takers_[index(taker)].leased; }
  std::vector<Engine::Holder> holders() const;

 private:
  struct Taker {
    bool open = true;
    std::uint64_t next = 0;
    std::shared_ptr<std::atomic<int>> leased = std::make_shared<std::atomic<int>>(0);
  };
  static std::size_t index(int taker) { return static_cast<std::size_t>(taker); }
  void retire();

  int from_;
  int window_;
  bool sender_open_ = true;
  std::vector<int> ranks_;
  std::vector<Taker> takers_;
  std::deque<Message> messages_;  ///< published and not yet taken by all
  std::uint64_t first_ = 0;       ///< the number of messages_.front()
};

}  // namespace levada::inproc
