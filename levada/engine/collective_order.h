// Ranks of one group that are in different collective calls wait for each other until they time out. CollectiveOrder
// ends their group instead.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"

namespace levada {

/// The Status::operation of a rank that starts a feed, posted in the group that the feed is started on.
inline constexpr std::string_view feed_start_operation = "starting the feed";

/// Watches one wait of a collective call. Does nothing before is_due(), so that calls in which all ranks meet cost no
/// message.
class CollectiveOrder {
 public:
  /// `poll` is also called by as_poll(); may be null.
  CollectiveOrder(Engine& group, const std::function<void()>* poll) : group_(group), poll_(poll) {}

  /// Ends the group with InvalidArgument, on all ranks, once this rank and another have waited for each other in
  /// different operations for `until_certain`. Call it while this rank waits and its posted status names the other
  /// rank.
  void check();

  /// Returns whether the wait has lasted long enough to be checked.
  bool is_due() const { return Clock::now() - begin_ >= until_certain / 2; }

  /// Returns a WaitFor::poll that calls the constructor's `poll` and check().
  std::function<void()> as_poll() {
    return [this] {
      if (poll_ != nullptr && *poll_) (*poll_)();
      check();
    };
  }

  /// Long enough for a message that is still in transit when two ranks post their statuses.
  static constexpr Duration until_certain = std::chrono::seconds(2);

 private:
  Engine& group_;
  const std::function<void()>* poll_;
  Clock::time_point begin_ = Clock::now();
  std::string seen_;  ///< the contradiction that the last check() found; empty if none
  Clock::time_point since_{};
};

}  // namespace levada
