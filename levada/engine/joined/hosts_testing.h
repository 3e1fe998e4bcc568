// Hosts within one process: ranks are threads, and the test transport joins the hosts and counts the bytes that cross
// between them. Only for tests.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/engine/inproc/inproc.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/p2p/in_process_transport_testing.h"

namespace levada::joined::test {

/// The hosts of a test. Ranks are assigned to hosts in order, `ranks_a_host` to each.
struct Hosts {
  int ranks_a_host = 2;
  Options options{.leave_timeout = std::chrono::seconds(2)};
  Duration heartbeat = std::chrono::milliseconds(200);
  std::size_t memory_bytes = inproc::Options().memory_bytes;  ///< memory of each rank's blocks
};

class Job {
 public:
  Job(int size, const Hosts& hosts) : network(size) {
    std::vector<int> host_of;
    for (int rank = 0; rank < size; ++rank) host_of.push_back(rank / hosts.ranks_a_host);
    for (int first = 0; first < size; first += hosts.ranks_a_host) {
      const int here = std::min(hosts.ranks_a_host, size - first);
      for (auto& engine : inproc::make_group(here, {hosts.memory_bytes, hosts.heartbeat})) {
        near.push_back(std::move(engine));
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      auto far = p2p::make_engine(std::make_shared<p2p::test::LoopbackTransport>(network, rank, host_of),
                                  {.heartbeat = hosts.heartbeat});
      Options options = hosts.options;
      options.heartbeat = hosts.heartbeat;
      engines.push_back(make_engine(near[static_cast<std::size_t>(rank)], std::move(far), options));
    }
  }
  /// Acts as if the rank's process had ended.
  void lose(int rank) {
    inproc::lose(*near[static_cast<std::size_t>(rank)]);
    network.lose(rank);
  }

  p2p::test::LoopbackNetwork network;  // must outlive the engines
  std::vector<std::shared_ptr<Engine>> near;
  std::vector<std::shared_ptr<Engine>> engines;
};

/// Runs `body` on one thread per rank. A failing rank aborts the group. Returns one line per failure.
inline std::string run_ranks(int size, const Hosts& hosts,
                             const std::function<void(const std::shared_ptr<Engine>&, Job& job)>& body) {
  Job job(size, hosts);
  std::mutex mutex;
  std::string failures;
  const auto run_one = [&](std::shared_ptr<Engine> engine) {
    try {
      body(engine, job);
    } catch (const std::exception& error) {
      engine->abort(error.what());
      const std::lock_guard lock(mutex);
      failures += std::string(error.what()) + "\n";
    }
  };
  std::vector<std::thread> threads;
  for (auto& engine : job.engines) threads.emplace_back(run_one, std::move(engine));
  for (std::thread& thread : threads) thread.join();
  job.near.clear();
  return failures;
}

}  // namespace levada::joined::test
