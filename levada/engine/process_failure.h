// Limits how long a process waits for its peers when it ends after a failure.
#pragma once

#include "levada/base/deadline.h"

namespace levada {

/// The failure of this process, if there is one: a group of any of its engines has ended for a cause, and no group has
/// been entered since. A peer may then be gone or hang in all of its groups, so a process that leaves waits for the
/// last messages of none of them for long. Thread-safe.
class ProcessFailure {
 public:
  static void note() noexcept;
  /// Forgets the failure: the process goes on.
  static void forget() noexcept;
  static bool exists() noexcept;
  /// Returns the end of a wait of at most `timeout` in leaving. Waits that follow each other share the time, so that a
  /// process with many groups leaves as fast as one with a single group.
  static Deadline leave_deadline(Duration timeout) noexcept;
};

}  // namespace levada
