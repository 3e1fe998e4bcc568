// Keeping the process's signals away from one thread.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace levada {

/// No signal is handled on this thread while it lives; threads that are started meanwhile handle none ever.
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

  /// For the child of a fork that becomes another program.
  void lift() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace levada
