// One engine made of two: one between the ranks of each host, and one between hosts.
// docs/design/joined.md explains how.
#pragma once

#include <functional>
#include <memory>

#include "levada/base/deadline.h"
#include "levada/engine/choice.h"
#include "levada/engine/engine.h"

namespace levada::joined {

struct Options {
  /// To how many other hosts a rank sends a message at most; the same on all ranks. Where a channel has receivers on
  /// more hosts, some of these forward it.
  int degree = default_degree;
  /// How long a rank that leaves waits for the ends of the channels that it forwards: their sender may be in the
  /// program's code. Then it ends the groups of these channels.
  Duration leave_timeout = std::chrono::minutes(30);
  /// The same for a rank that leaves because a group has ended for a cause.
  Duration failed_leave_timeout = std::chrono::seconds(5);
  Duration remind_after = std::chrono::seconds(30);  ///< of that wait: as Reminder does
  /// Called ten times a second during that wait; where it returns true, the wait ends as at leave_timeout. May be
  /// empty.
  std::function<bool()> is_interrupted = {};
  /// How long the forwarding thread waits for the near engine at most before it checks again what wakes nobody.
  /// Duration::max(): there is nothing of that kind.
  Duration heartbeat = std::chrono::seconds(1);
};

/// This rank's engine of all ranks of `far`, in its numbering. What stays on a host goes through `near` alone. What
/// goes to others crosses to each host once, into memory of `near` there, and is forwarded by a thread of the first
/// receiver's process, without a copy.
///
/// `near`: of the ranks that far->info().host_of counts to this rank's host, in the same order. It publishes leases of
/// its own blocks.
/// `far`: publishes leases of any bytes, has on_change(), which this takes, and has room as long as only its own thread
/// publishes. A thread that waits for it alone moves it.
///
/// Throws InvalidArgument where the two do not fit.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Engine> near, std::shared_ptr<Engine> far,
                                    const Options& options = {});

}  // namespace levada::joined
