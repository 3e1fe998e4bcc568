// A fork whose buffer is too small for what joins its branches: how large it would have to be.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "levada/base/deadline.h"
#include "levada/pipeline/failure.h"

namespace levada::pipeline {

/// Nobody can move but the branch that is ahead. It is given more items than the buffer holds, which nobody keeps for
/// the other, until the other moves or either ends: then it is known what buffer it takes, and the pipeline fails.
/// Items are counted for some seconds at most, and at most so many.
class Overrun {
 public:
  static constexpr std::int64_t most_items = 1'000'000;
  static constexpr auto longest = std::chrono::seconds(5);

  /// `where` names stage and process.
  Overrun(Failure where, std::string ahead, std::string behind, std::int64_t buffer)
      : where_(std::move(where)),
        ahead_(std::move(ahead)),
        behind_(std::move(behind)),
        buffer_(buffer),
        lead_(buffer) {}

  /// The branch that is ahead has been given another item.
  void count() { lead_.fetch_add(1, std::memory_order_relaxed); }
  /// Whether to count no further.
  bool is_enough() const {
    return lead_.load(std::memory_order_relaxed) - buffer_ >= most_items || deadline_.expired();
  }
  /// Throws StageFailed. `exact`: what has been counted is what it takes.
  [[noreturn]] void fail(bool exact) const;

 private:
  Failure where_;
  std::string ahead_, behind_;
  std::int64_t buffer_;
  std::atomic<std::int64_t> lead_;  ///< of the branch that is ahead, in items
  Deadline deadline_ = Deadline::after(longest);
};

/// The overrun that a graph is in. Any thread may ask.
class Overruns {
 public:
  /// The stage that joins the branches gives nothing any more: see is_held(). False: another fork's is under way.
  bool begin(int joining, std::shared_ptr<const Overrun> overrun) {
    const std::lock_guard lock(mutex_);
    if (overrun_ != nullptr) return false;
    overrun_ = std::move(overrun);
    joining_.store(joining, std::memory_order_release);
    return true;
  }
  /// Whether what `stage` makes is made to be counted alone.
  bool is_held(int stage) const { return joining_.load(std::memory_order_acquire) == stage; }
  /// While a stage is held: throws once enough has been counted.
  void check() const {
    if (overrun_->is_enough()) overrun_->fail(false);
  }
  /// `stage`, which is held, has come to its end.
  [[noreturn]] void fail() const { overrun_->fail(true); }

 private:
  std::mutex mutex_;
  std::shared_ptr<const Overrun> overrun_;
  std::atomic<int> joining_{-1};
};

}  // namespace levada::pipeline
