// Measures how long a rank takes to publish a message to sleeping receivers, each a process of this host, and how long
// one FUTEX_WAKE of as many sleeping processes takes, which is the limit. Before each round the sender writes every
// byte of the message. Each receiver reads it every second round; these rounds are not measured, since readers occupy
// cores that woken processes need. Prints one JSON object for each number of receivers: medians over rounds, in
// microseconds. The numbers of receivers take turns. bench/README.md has the fields.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/percentile.h"
#include "bench/rounds.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/futex.h"
#include "levada/engine/shm/shm.h"

namespace levada::bench {
namespace {

constexpr std::array num_receivers{4, 8, 32};
constexpr int warm_up = 10;

Deadline soon() {
  return Deadline::after(round_timeout);
}

/// The memory that the processes of one group share.
struct Shared {
  shm::FutexWord word{0};  ///< the word on which the receivers of BareWake sleep
  std::atomic<int> num_done{0};
  std::atomic<std::int64_t> last_awake_ns{0};

  void done() {
    const std::int64_t now = now_ns();
    for (std::int64_t last = last_awake_ns; last < now && !last_awake_ns.compare_exchange_weak(last, now);) {
    }
    ++num_done;
  }
};

std::int64_t thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Maps memory that this process and its children share until all of them have ended.
void* map_shared(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw EngineError("the benchmark finds no memory");
  return memory;
}

bool counts(int round) {
  return round >= warm_up && round % 2 == 0;
}

void write_all(std::span<std::byte> bytes, int round) {
  std::memset(bytes.data(), round, bytes.size());
}

void read_all(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0, word = 0;
  for (std::size_t at = 0; at + sizeof(word) <= bytes.size(); at += sizeof(word)) {
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    sum += word;
  }
  [[maybe_unused]] volatile const std::uint64_t is_read = sum;
}

bool is_asleep(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string word;
  for (int i = 0; i < 3; ++i) file >> word;  // this program's name has no blanks
  return word == "S";
}

/// A sender, which is this process, and receivers, each a separate process.
class Group {
 public:
  using Body = std::function<void(int rank, Shared& shared)>;

  Group(int size, const Body& receiver)
      : shared_(new (map_shared(sizeof(Shared))) Shared), receivers_(static_cast<std::size_t>(size)) {
    for (int i = 0; i < size; ++i) {
      const pid_t parent = ::getpid(), child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        try {
          receiver(i + 1, *shared_);
        } catch (const std::exception& error) {
          std::cerr << error.what() << '\n';
          ::_exit(1);
        }
        ::_exit(0);
      }
      receivers_[static_cast<std::size_t>(i)] = child;
    }
  }
  ~Group() {
    for (const pid_t receiver : receivers_) ::waitpid(receiver, nullptr, 0);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Shared& shared() { return *shared_; }
  int size() const { return static_cast<int>(receivers_.size()); }

  void wait_until_all_sleep() const {
    const Deadline deadline = soon();
    for (const pid_t receiver : receivers_) {
      while (!is_asleep(receiver)) {
        if (deadline.expired()) throw Timeout("a receiver of the benchmark does not fall asleep");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }

  struct Time {
    double call_us = 0;  ///< until the sender's call has returned
    double cpu_us = 0;   ///< processor time of that call, without the time in which woken receivers took its core
    double all_us = 0;   ///< until the last receiver is awake
  };
  /// Measures `call`, which wakes the receivers. All receivers must sleep.
  Time time(const std::function<void()>& call) {
    shared_->num_done = 0;
    shared_->last_awake_ns = 0;
    const auto cpu_begin = thread_cpu_ns(), begin = now_ns();
    call();
    const auto end = now_ns(), cpu_end = thread_cpu_ns();
    for (const Deadline deadline = soon(); shared_->num_done != size();) {
      if (deadline.expired()) throw Timeout("a receiver of the benchmark does not wake up");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const auto us = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
    return {us(end - begin), us(cpu_end - cpu_begin), us(shared_->last_awake_ns - begin)};
  }

 private:
  Shared* shared_;
  std::vector<pid_t> receivers_;
};

/// A bare FUTEX_WAKE.
class BareWake {
 public:
  BareWake(int receivers, int rounds, std::size_t bytes)
      : message_(static_cast<std::byte*>(map_shared(bytes)), bytes),
        group_(receivers, [rounds, message = message_](int, Shared& shared) {
          for (std::uint32_t round = 0; round < static_cast<std::uint32_t>(rounds); ++round) {
            while (shared.word == round) shm::futex_wait(shared.word, round, round_timeout);
            shared.done();
            if (!counts(static_cast<int>(round))) read_all(message);
          }
        }) {}
  Group::Time round() {
    group_.wait_until_all_sleep();
    write_all(message_, static_cast<int>(group_.shared().word));
    return group_.time([&] {
      ++group_.shared().word;
      shm::futex_wake(group_.shared().word);
    });
  }

 private:
  std::span<std::byte> message_;
  Group group_;
};

/// The engine's try_publish().
class Publish {
 public:
  Publish(int receivers, int rounds, std::size_t bytes)
      : bytes_(bytes),
        links_(shm::make_links(receivers + 1)),
        to_(static_cast<std::size_t>(receivers)),
        group_(receivers,
               [&, rounds](int rank, Shared& shared) {
                 const auto engine = join(rank);
                 const auto channel = engine->open(0, to_, 2);
                 for (int round = 0; round < rounds; ++round) {
                   const auto message = receive(*engine, *channel, soon(), "benchmark");
                   shared.done();
                   if (!counts(round)) read_all(message->bytes);
                 }
               }),
        engine_(join(0)),
        channel_(engine_->open(0, to_, 2)) {}
  Group::Time round() {
    group_.wait_until_all_sleep();
    Block block = allocate(*engine_, bytes_, soon(), "benchmark");
    write_all(block.memory(), ++round_);
    return group_.time([&] {
      if (!engine_->try_publish(*channel_, block, bytes_)) throw EngineError("the benchmark finds no room");
    });
  }

 private:
  std::shared_ptr<Engine> join(int rank) {
    std::iota(to_.begin(), to_.end(), 1);
    auto mine = std::move(links_[static_cast<std::size_t>(rank)]);
    links_.clear();
    return shm::join(rank, static_cast<int>(to_.size()) + 1, std::move(mine),
                     {.memory_bytes = (std::size_t{16} << 20) + 4 * bytes_});
  }

  std::size_t bytes_;
  int round_ = 0;
  std::vector<std::vector<UniqueFd>> links_;
  std::vector<int> to_;
  Group group_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
};

struct Times {
  std::vector<double> call_us, cpu_us, all_us;
  void add(const Group::Time& time) {
    call_us.push_back(time.call_us);
    cpu_us.push_back(time.cpu_us);
    all_us.push_back(time.all_us);
  }
};

void run(int rounds, std::size_t bytes) {
  std::vector<std::unique_ptr<BareWake>> wakes;
  std::vector<std::unique_ptr<Publish>> publishes;
  for (const int receivers : num_receivers) {  // before this process starts threads
    wakes.push_back(std::make_unique<BareWake>(receivers, warm_up + 2 * rounds, bytes));
  }
  for (const int receivers : num_receivers) {
    publishes.push_back(std::make_unique<Publish>(receivers, warm_up + 2 * rounds, bytes));
  }
  std::array<Times, num_receivers.size()> bare, published;
  for (int round = 0; round < warm_up + 2 * rounds; ++round) {
    for (std::size_t i = 0; i < num_receivers.size(); ++i) {
      const auto wake = wakes[i]->round(), publish = publishes[i]->round();
      if (!counts(round)) continue;
      bare[i].add(wake);
      published[i].add(publish);
    }
  }
  for (std::size_t i = 0; i < num_receivers.size(); ++i) {
    const auto median = [](const std::vector<double>& us) { return percentile(us, 0.5); };
    std::cout << fmt::format(
        "{{\"receivers\": {}, \"publish_us\": {:.1f}, \"publish_cpu_us\": {:.1f}, \"all_received_us\": {:.1f}, "
        "\"wake_us\": {:.1f}, \"wake_cpu_us\": {:.1f}, \"all_awake_us\": {:.1f}}}\n",
        num_receivers[i], median(published[i].call_us), median(published[i].cpu_us), median(published[i].all_us),
        median(bare[i].call_us), median(bare[i].cpu_us), median(bare[i].all_us));
  }
}

}  // namespace
}  // namespace levada::bench

int main(int count, char** arguments) try {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 300;
  const int bytes = count > 2 ? std::atoi(arguments[2]) : 4096;
  if (count > 3 || rounds < 1 || bytes < 1) {
    std::cerr << "usage: wake_fan_out [ROUNDS [BYTES]]\n";
    return 2;
  }
  levada::bench::run(rounds, static_cast<std::size_t>(bytes));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
