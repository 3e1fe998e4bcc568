// Blocks the process's signals on one thread.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace levada {

/// Blocks all signals on this thread as long as the object lives. Threads started in that time inherit the mask and
/// never handle signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { lift(); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  /// Restores the mask early, for a forked child that becomes another program.
  void lift() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace levada
