// Ranks of one group that are in different collective calls wait for each other until they time out. This ends their
// group instead.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"

namespace levada {

/// The Status::operation of a rank that starts a feed, on the board of the group that the feed was started on.
inline constexpr std::string_view feed_start_operation = "starting the feed";

/// Watches one wait of a collective call. Does nothing before `is_due()`, so that calls in which ranks meet cost no
/// message.
class CollectiveOrder {
 public:
  /// `poll`: what its caller wants called as well; may be null.
  CollectiveOrder(Engine& group, const std::function<void()>* poll) : group_(group), poll_(poll) {}

  /// Ends the group with InvalidArgument, for all ranks, once this rank and another one have waited for each other in
  /// different operations for `until_certain`. Called while the rank waits; the board of the group says for whom.
  void check();

  /// Whether the wait has lasted long enough to be looked at.
  bool is_due() const { return Clock::now() - begin_ >= until_certain / 2; }

  /// check() and the caller's own function, as a WaitFor::poll.
  std::function<void()> as_poll() {
    return [this] {
      if (poll_ != nullptr && *poll_) (*poll_)();
      check();
    };
  }

  /// What two ranks post may have crossed with a message that is on its way.
  static constexpr Duration until_certain = std::chrono::seconds(2);

 private:
  Engine& group_;
  const std::function<void()>* poll_;
  Clock::time_point begin_ = Clock::now();
  std::string seen_;  ///< the contradiction that the last check() found; empty if none
  Clock::time_point since_{};
};

}  // namespace levada
