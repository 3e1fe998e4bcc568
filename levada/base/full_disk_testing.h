// Simulates a full disk, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

namespace levada {

/// Keeps this process's files from growing beyond `bytes` as long as the object lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : before_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit now{.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit_), 0);
    ::signal(SIGXFSZ, before_);
  }

  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*before_)(int);
  rlimit limit_{};
};

}  // namespace levada
