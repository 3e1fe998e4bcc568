// Joins two engines into one: the first connects the ranks of each host, the second connects hosts. See
// docs/design/joined.md.
#pragma once

#include <functional>
#include <memory>

#include "levada/base/deadline.h"
#include "levada/engine/choice.h"
#include "levada/engine/engine.h"

namespace levada::joined {

struct Options {
  /// Maximum number of other hosts that a rank sends one message to; the same on all ranks. If a channel has receivers
  /// on more hosts, some of the receivers forward the messages.
  int degree = default_degree;
  /// How long a leaving rank waits for the channels that it forwards to end. Their senders may still be busy in the
  /// program's code. After that time, the rank ends the groups of these channels.
  Duration leave_timeout = std::chrono::minutes(30);
  /// Replaces leave_timeout after a ProcessFailure. All engines of the process share this time.
  Duration failed_leave_timeout = std::chrono::seconds(5);
  Duration remind_after = std::chrono::seconds(30);  ///< first report of that wait, by a Reminder
  /// Called ten times a second during that wait. If it returns true, the wait ends as it does at leave_timeout. May be
  /// empty.
  std::function<bool()> is_interrupted = {};
  /// Maximum time that the forwarding thread waits for the near engine before it rechecks conditions that wake no
  /// thread. Duration::max() if there are no such conditions.
  Duration heartbeat = std::chrono::seconds(1);
};

/// Returns this rank's engine over all ranks of `far`, in its numbering. Messages within a host use only `near`. A
/// message to other hosts crosses to each of them once, into memory of `near` on that host; a thread in the first
/// receiver's process forwards it without a copy.
///
/// `near`: an engine over the ranks that far->info().host_of places on this rank's host, in the same order. It
/// publishes leases of its own blocks. `far`: an engine that publishes leases of any bytes and has on_change(), which
/// this function takes over. Once a channel of it has room, the room remains as long as only one thread publishes on
/// the channel. A thread that waits only on `far` drives its progress.
///
/// Throws InvalidArgument if the two do not match.
std::shared_ptr<Engine> make_engine(std::shared_ptr<Engine> near, std::shared_ptr<Engine> far,
                                    const Options& options = {});

}  // namespace levada::joined
