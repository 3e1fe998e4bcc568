// For tests with several ranks of a job.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::pipeline::testing {

/// Runs `body` on each rank, as threads and then as processes.
inline void on_threads_and_processes(int ranks, const std::function<void(const std::shared_ptr<Engine>&)>& body) {
  inproc::run_ranks(ranks, body);
  EXPECT_EQ(shm::test::run_forked(ranks, body, {.memory_bytes = std::size_t{64} << 20}), "");
}

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);  // in a forked rank, failed expectations are not reported
}

}  // namespace levada::pipeline::testing
