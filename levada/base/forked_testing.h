// Runs parts of tests in processes of their own.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <functional>

namespace levada {

/// Runs `body` in a forked process, for at most a minute. Returns its exit status: 255 if `body` throws, and 128 plus
/// the number of the signal that ended the process.
inline int in_forked_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    try {
      ::_exit(body());
    } catch (...) {
      ::_exit(255);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Does the same in a process whose address space has room for only this many more threads. A sanitizer ends such a
/// process.
inline int with_room_for_threads(std::size_t threads, const std::function<int()>& body) {
  return in_forked_process([&] {
    constexpr std::size_t stack = std::size_t{1} << 30;
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, stack);
    ::pthread_setattr_default_np(&attributes);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + threads * stack + stack / 2;
    const rlimit limit{space, space};
    ::setrlimit(RLIMIT_AS, &limit);
    return body();
  });
}

}  // namespace levada
