#include "levada/engine/shm/forked_ranks_testing.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "levada/base/error.h"
#include "levada/engine/shm/endpoint.h"

namespace levada::shm::test {
namespace {

[[noreturn]] void run_child(int pipe, int rank, const std::function<void(int)>& body) {
  int status = 0;
  std::string error;
  try {
    body(rank);
  } catch (const std::exception& exception) {
    error = exception.what();
    status = 1;
  }
  static_cast<void>(!::write(pipe, error.data(), error.size()));
  ::_exit(status);
}

/// Returns a sentence for each rank that has not ended as expected; `killed` must end by SIGKILL.
std::string failures_of(ForkedRanks& ranks, int killed) {
  std::string failures;
  int rank = 0;
  for (const Ending& ending : ranks.wait()) {
    const bool as_expected = rank == killed ? ending.signal == SIGKILL && ending.error.empty() : ending.well;
    if (!as_expected) failures += fmt::format("rank {} (signal {}): {}\n", rank, ending.signal, ending.error);
    ++rank;
  }
  return failures;
}

void wait_until_all_live(const Control& control) {
  for (int rank = 0; rank < control.size(); ++rank) {
    const RankPage& page = control.page(rank);
    for (const Deadline deadline = soon(); page.alive == 0 && page.left == 0;) {
      if (deadline.expired()) throw Timeout("a rank does not start");
      std::this_thread::yield();
    }
  }
}

}  // namespace

ForkedRanks::ForkedRanks(int size, const std::function<void(int rank)>& body) {
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw EngineError("no pipe");
    const int process = ::fork();
    if (process == 0) run_child(ends[1], rank, body);
    ::close(ends[1]);
    children_.push_back({process, ends[0]});
  }
}

ForkedRanks::~ForkedRanks() {
  for (Child& child : children_) {
    if (child.process > 0) static_cast<void>(reap(child, Deadline::now()));
  }
}

void ForkedRanks::kill(int rank) const {
  ::kill(children_[static_cast<std::size_t>(rank)].process, SIGKILL);
}

Ending ForkedRanks::reap(Child& child, Deadline deadline) const {
  Ending ending;
  std::array<char, 512> text{};
  while (true) {
    pollfd polled{child.pipe, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
    if (::poll(&polled, 1, static_cast<int>(left)) == 0) {
      ::kill(child.process, SIGKILL);
      ending.error += "was killed at the deadline";
      break;
    }
    const ssize_t size = ::read(child.pipe, text.data(), text.size());
    if (size <= 0) break;
    ending.error.append(text.data(), static_cast<std::size_t>(size));
  }
  int status = 0;
  ::waitpid(child.process, &status, 0);
  ::close(child.pipe);
  child.process = 0;
  ending.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ending.well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ending;
}

std::vector<Ending> ForkedRanks::wait(Deadline deadline) {
  std::vector<Ending> endings;
  for (Child& child : children_) endings.push_back(reap(child, deadline));
  return endings;
}

std::string run_forked(int size, const std::function<void(std::shared_ptr<Engine>)>& body, const Options& options,
                       int killed) {
  auto links = make_links(size);
  ForkedRanks ranks(size, [&](int rank) {
    auto mine = std::move(links[static_cast<std::size_t>(rank)]);
    links.clear();
    body(join(rank, size, std::move(mine), options));
  });
  links.clear();
  return failures_of(ranks, killed);
}

std::string run_forked_with(const EndpointOptions& options, int size, std::size_t memory_bytes,
                            const std::function<void(std::shared_ptr<Engine>)>& body, int killed) {
  const auto memories = share_in_process(size, memory_bytes);
  ForkedRanks ranks(size, [&](int rank) {
    const HostMemory& memory = memories[static_cast<std::size_t>(rank)];
    auto endpoint = std::make_shared<ShmEndpoint>(memory, options);
    wait_until_all_live(Control(memory.control->data(), size));
    endpoint->watch();
    body(make_engine(std::move(endpoint)));
  });
  return failures_of(ranks, killed);
}

std::vector<HostMemory> share_in_process(int size, std::size_t memory_bytes) {
  const auto map = [](const char* label, std::size_t bytes) {
    return std::make_shared<const Mapping>(make_memory_file(label, bytes), bytes, Mapping::Access::write);
  };
  const auto control = map("control", Control::bytes(size));
  std::vector<std::shared_ptr<const Mapping>> data;
  for (int rank = 0; rank < size; ++rank) data.push_back(map("data", memory_bytes));
  std::vector<HostMemory> memories;
  for (int rank = 0; rank < size; ++rank) memories.push_back({rank, size, control, data});
  return memories;
}

std::string run_threads(int size, const std::function<void(std::shared_ptr<Engine>)>& body, std::size_t memory_bytes,
                        const EndpointOptions& options) {
  std::vector<std::shared_ptr<Engine>> engines;
  {
    std::vector<std::shared_ptr<ShmEndpoint>> endpoints;
    for (HostMemory& memory : share_in_process(size, memory_bytes)) {
      endpoints.push_back(std::make_shared<ShmEndpoint>(std::move(memory), options));
    }
    for (auto& endpoint : endpoints) {
      endpoint->watch();
      engines.push_back(make_engine(std::move(endpoint)));
    }
  }
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, engine = std::move(engines[static_cast<std::size_t>(rank)])]() mutable {
      try {
        body(std::move(engine));
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failures += fmt::format("rank {}: {}\n", rank, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

ThreadState state_of_thread(int thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/status", thread));
  ThreadState found;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("State:")) found.is_asleep = line.find("S (") != std::string::npos;
    if (line.starts_with("voluntary_ctxt_switches:")) found.num_sleeps = std::stol(line.substr(line.find(':') + 1));
  }
  return found;
}

long wait_until_it_sleeps(int thread) {
  long before = -1;
  for (const Deadline deadline = soon(); !deadline.expired();) {
    const auto state = state_of_thread(thread);
    // A thread that is about to sleep looks asleep before the sleep is counted.
    if (state.is_asleep && state.num_sleeps == before) return before;
    before = state.is_asleep ? state.num_sleeps : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw Timeout("the thread does not sleep");
}

}  // namespace levada::shm::test
