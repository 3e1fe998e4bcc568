// The identity of this process.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace levada::python {

/// Returns getpid() without a system call: the id is read once, and again in each child of fork().
inline pid_t current_process() {
  static std::atomic<pid_t> current = [] {
    ::pthread_atfork(nullptr, nullptr, [] { current = ::getpid(); });
    return ::getpid();
  }();
  return current.load(std::memory_order_relaxed);
}

}  // namespace levada::python
