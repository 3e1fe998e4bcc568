// The reason why a rank cannot finish its pass of a feed. A thread reports it while the rank's caller is elsewhere,
// such as in a collective of another library.
#pragma once

#include <optional>
#include <string>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"
#include "levada/feed/protocol.h"

namespace levada {

/// Another rank's end, as seen by a rank that still uses the feed.
struct FeedLoss {
  int rank = -1;       ///< the rank that ended; -1: unknown
  std::string reason;  ///< its exception or kind of end, the same in every feed that it ends
  std::string text;    ///< one line: the rank, what it did and when, and the step of the rank that reports it
};

/// Time to wait for a rank to leave at the same step as another one, and for that other one to post its exception.
inline constexpr Duration loss_timeout = std::chrono::milliseconds(400);

/// Returns the loss, if there is one: caused by `cause`, which has ended the group, or by the departure that `follower`
/// has known for `known_for`. A departure without a reason is a loss only for a rank that has taken a later batch.
std::optional<FeedLoss> find_loss(const feed_protocol::Follower& follower, const std::optional<Cause>& cause,
                                  Duration known_for, int own_rank);

}  // namespace levada
