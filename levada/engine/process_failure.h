// Limits how long a process waits for its peers when it ends after a failure.
#pragma once

#include <string>
#include <string_view>

#include "levada/base/deadline.h"

namespace levada {

/// A leaving process waits for the last messages of its peers. After a failure, a peer may be gone or hang in all of
/// its groups, so the process must not wait long in each of them. ProcessFailure records whether a group of any engine
/// of this process has ended for a cause, or an exception ends the process, and no group has been entered since.
/// Thread-safe.
class ProcessFailure {
 public:
  static void note() noexcept;
  /// Notes that an exception of this text ends the process. Counts as a failure after `patience`, in which healthy
  /// ranks receive this rank's last messages.
  static void note_exception(std::string_view text, Duration patience);
  /// Clears the failure, because the process continues.
  static void forget() noexcept;
  static bool exists() noexcept;
  /// Returns the text of the exception that ends the process, or "" if none is known.
  static std::string exception();
  /// Returns the deadline of a wait of at most `timeout` while leaving. Consecutive waits share one deadline, so that a
  /// process leaves many groups as fast as one.
  static Deadline leave_deadline(Duration timeout) noexcept;
};

}  // namespace levada
