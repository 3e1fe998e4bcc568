// One engine made of two: one between the ranks of each host, and one between hosts.
// docs/design/joined.md explains how.
#pragma once

#include <memory>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"

namespace levada::joined {

struct Options {
  /// To so many other hosts a rank sends at most; where a channel has receivers on more, some of these send on.
  int degree = 16;
  /// How long a rank that leaves goes on forwarding what others of its host still wait for. Then it ends their groups.
  Duration leave_timeout = std::chrono::seconds(60);
  /// How long the forwarding thread waits for the near engine at most before it looks again at what wakes nobody.
  /// Duration::max(): nothing is such.
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
