// Which process this is.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace levada::python {

/// As getpid() has it, without a system call: asked once, and again in each child that fork() makes.
inline pid_t current_process() {
  static std::atomic<pid_t> current = [] {
    ::pthread_atfork(nullptr, nullptr, [] { current = ::getpid(); });
    return ::getpid();
  }();
  return current.load(std::memory_order_relaxed);
}

}  // namespace levada::python
