// One thread fills blocks, another one empties them.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace levada {

/// A row of a few blocks between two threads, in order. Whichever side ends first wakes the other, so neither waits for
/// what will not come.
template <typename Block>
class HandOver {
 public:
  explicit HandOver(std::size_t most) : most_(most) {}

  /// Waits while there are `most` blocks; false if nobody takes them any more.
  bool give(Block block) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return blocks_.size() < most_ || given_up_; });
    if (given_up_) return false;
    blocks_.push_back(std::move(block));
    changed_.notify_one();
    return true;
  }
  /// Nothing more comes, because of `error` if there is one.
  void close(std::exception_ptr error = {}) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    error_ = std::move(error);
    changed_.notify_one();
  }

  /// Waits for a block; empty when nothing more comes. Throws the error of close() behind the last block.
  std::optional<Block> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !blocks_.empty() || closed_; });
    if (blocks_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<Block> block(std::move(blocks_.front()));
    blocks_.pop_front();
    changed_.notify_one();
    return block;
  }
  /// Nothing more will be taken.
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_one();
  }

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> blocks_;
  bool closed_ = false, given_up_ = false;
  std::exception_ptr error_;
};

}  // namespace levada
