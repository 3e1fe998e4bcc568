#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/base/signals_blocked.h"
#include "levada/engine/shm/shm.h"
#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"

extern char** environ;

namespace levada::launch {
namespace {

[[noreturn]] void fail(std::string_view what) {
  throw EngineError(fmt::format("cannot start the ranks: {}: {}", what, std::strerror(errno)));
}

constexpr std::array watched_signals = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};

/// What the signal handler writes to; -1 where no Signals live.
std::atomic<int> signal_pipe = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const std::array<char, 2> record{static_cast<char>(number), number == SIGINT && info->si_code == SI_KERNEL};
  // Where the pipe is full there is enough to read.
  static_cast<void>(::write(signal_pipe, record.data(), record.size()));
  errno = error;
}

/// The watched signals as a descriptor, for as long as this lives, whichever of the process's threads the kernel gives
/// them to. Ignored signals stay ignored, except SIGCHLD. One object at a time.
class Signals {
 public:
  Signals() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) fail("pipe");
    read_ = UniqueFd(fds[0]);
    write_ = UniqueFd(fds[1]);
    signal_pipe = write_.get();
    struct sigaction action {};
    action.sa_sigaction = note_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    for (std::size_t i = 0; i < watched_signals.size(); ++i) {
      ::sigaction(watched_signals[i], nullptr, &before_[i]);
      const bool is_ignored = before_[i].sa_handler == SIG_IGN && watched_signals[i] != SIGCHLD;
      if (!is_ignored) ::sigaction(watched_signals[i], &action, nullptr);
    }
  }
  ~Signals() {
    restore();
    signal_pipe = -1;
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return read_.get(); }
  /// As they were handled before. Async-signal-safe.
  void restore() const {
    for (std::size_t i = 0; i < watched_signals.size(); ++i) ::sigaction(watched_signals[i], &before_[i], nullptr);
  }
  struct Signal {
    int number = 0;
    bool ranks_have_it = false;  ///< Ctrl-C, which the kernel sends to all processes in the terminal's foreground
  };
  /// The next one that has come, if any.
  std::optional<Signal> next() {
    std::array<char, 2> record{};
    if (::read(read_.get(), record.data(), record.size()) != static_cast<ssize_t>(record.size())) return {};
    return Signal{record[0], record[1] != 0};
  }

 private:
  std::array<struct sigaction, watched_signals.size()> before_{};
  UniqueFd read_, write_;
};

std::string this_program() {
  std::array<char, 4096> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  std::string found(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (!found.empty() && ::access(found.c_str(), X_OK) == 0) return found;
  // Replaced on the disk, which the link still leads to; or without /proc, where what was started is known by name.
  const auto* name = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));  // NOLINT(performance-no-int-to-ptr)
  return length <= 0 && name != nullptr ? name : "/proc/self/exe";
}

/// What a rank is started with, made before fork(): between fork and exec nothing is allocated.
struct Start {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::vector<int> inherited;
  std::vector<char> exec_failure;  ///< what to report where the program cannot be run
  int report = -1;
  int rank = 0;
  pid_t parent = 0;
};

/// Whether a variable says who this process is among the ranks of a job, which is no rank's place in the new one.
bool describes_place(std::string_view entry) {
  constexpr std::array names = {
      "LEVADA_RANK",       "LEVADA_WORLD_SIZE", "LEVADA_LOCAL_RANK", "LEVADA_LOCAL_WORLD_SIZE",
      "LEVADA_RENDEZVOUS", links_variable,      report_variable};
  return std::ranges::find(names, entry.substr(0, entry.find('='))) != names.end();
}

std::vector<std::string> environment_of(int rank, int size, const std::vector<int>& links, int report) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!describes_place(*entry)) variables.emplace_back(*entry);
  }
  variables.push_back(fmt::format("LEVADA_RANK={}", rank));
  variables.push_back(fmt::format("LEVADA_WORLD_SIZE={}", size));
  variables.push_back(fmt::format("{}={}", links_variable, join_numbers(links)));
  variables.push_back(fmt::format("{}={}", report_variable, report_channel(report)));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// The child's side of fork(): dies with its parent, keeps its own links, becomes the program.
[[noreturn]] void become_rank(const Start& start, const Signals& signals, const SignalsBlocked& blocked,
                              char* const* arguments, char* const* environment, int null) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(1);
  signals.restore();
  blocked.lift();
  ::dup2(null, STDIN_FILENO);
  if (start.rank != 0) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  for (const int fd : start.inherited) ::fcntl(fd, F_SETFD, 0);
  ::execve(start.program.c_str(), arguments, environment);
  ::send(start.report, start.exec_failure.data(), start.exec_failure.size(), MSG_NOSIGNAL);
  ::_exit(127);
}

pid_t start_rank(Start& start, const Signals& signals, int null) {
  auto arguments = pointers_to(start.arguments);
  auto environment = pointers_to(start.environment);
  const SignalsBlocked blocked;
  const pid_t child = ::fork();
  if (child < 0) fail(fmt::format("fork of rank {} (see ulimit -u)", start.rank));
  if (child == 0) become_rank(start, signals, blocked, arguments.data(), environment.data(), null);
  return child;
}

/// The processes of a job; kills those that are left when it goes.
class Processes {
 public:
  ~Processes() {
    kill(SIGKILL);
    for (const auto pid : pids_) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
    }
  }
  void add(pid_t pid) { pids_.push_back(pid); }
  void kill(int signal) const {
    for (const auto pid : pids_) {
      if (pid > 0) ::kill(pid, signal);
    }
  }
  /// Takes note of those that have ended.
  void reap(Supervision& job) {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      int status = 0;
      if (pids_[rank] <= 0 || ::waitpid(pids_[rank], &status, WNOHANG) != pids_[rank]) continue;
      pids_[rank] = 0;
      job.apply(Supervision::Ended{static_cast<int>(rank), status});
    }
  }

 private:
  std::vector<pid_t> pids_;
};

/// Both ends of what report_failure() writes to: the ranks' first.
std::array<UniqueFd, 2> make_reports() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) fail("socketpair");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void receive_reports(int fd, int size, Supervision& job) {
  std::array<char, 4096> record{};
  for (;;) {
    const auto bytes = ::recv(fd, record.data(), record.size(), MSG_DONTWAIT);
    std::int32_t head[2];
    if (bytes < static_cast<ssize_t>(sizeof head)) return;
    std::memcpy(head, record.data(), sizeof head);
    const bool is_rank = head[0] >= 0 && head[0] < size;
    const bool is_kind = head[1] >= static_cast<std::int32_t>(ErrorKind::invalid_argument) &&
                         head[1] <= static_cast<std::int32_t>(ErrorKind::engine);
    if (!is_rank || !is_kind) continue;
    job.apply(
        Supervision::Reported{head[0], static_cast<ErrorKind>(head[1]),
                              std::string(record.data() + sizeof head, static_cast<std::size_t>(bytes) - sizeof head)});
  }
}

void start_all(int size, const std::vector<std::string>& arguments, const LocalOptions& options, const Signals& signals,
               int report, Processes& processes) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto links = shm::make_links(size);
  Start start;
  start.program = options.program.empty() ? this_program() : options.program;
  start.arguments = {start.program};
  start.arguments.insert(start.arguments.end(), options.leading.begin(), options.leading.end());
  start.arguments.insert(start.arguments.end(), arguments.begin(), arguments.end());
  start.parent = ::getpid();
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int> own;
    for (const auto& link : links[static_cast<std::size_t>(rank)]) {
      if (link) own.push_back(link.get());
    }
    start.rank = rank;
    start.environment = environment_of(rank, size, own, report);
    start.inherited = std::move(own);
    start.inherited.push_back(report);
    start.report = report;
    start.exec_failure =
        encode_report(rank, ErrorKind::engine, fmt::format("rank {} cannot run {}", rank, start.program));
    processes.add(start_rank(start, signals, null.get()));
  }
}

void take_signals(Signals& signals, const Processes& processes, Supervision& job) {
  while (const auto signal = signals.next()) {
    if (signal->number == SIGCHLD) continue;
    job.apply(Supervision::Signalled{signal->number});
    if (!signal->ranks_have_it) processes.kill(signal->number);
  }
}

/// Until all have ended; those that are still there some time after a failure or a signal are killed.
void supervise(Signals& signals, int reports, int size, const LocalOptions& options, Processes& processes,
               Supervision& job) {
  auto deadline = Deadline::never();
  while (!job.all_ended()) {
    std::array<pollfd, 2> ready{pollfd{signals.fd(), POLLIN, 0}, pollfd{reports, POLLIN, 0}};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(std::min(deadline.remaining(), Duration(std::chrono::seconds(1))));
    ::poll(ready.data(), ready.size(), deadline.is_never() ? -1 : static_cast<int>(left.count()));
    take_signals(signals, processes, job);
    receive_reports(reports, size, job);
    processes.reap(job);
    if (job.is_ending() && deadline.is_never()) {
      deadline =
          Deadline::after(job.signal() != 0 ? options.signal_grace : std::max(options.grace, options.report_grace));
    }
    // The time beyond `grace` is for rank 0's report.
    const auto soon = Deadline::after(options.grace);
    if (job.is_ending() && job.signal() == 0 && job.has_ended(0) && soon.at() < deadline.at()) deadline = soon;
    if (!deadline.expired()) continue;
    job.apply(Supervision::Killed{});
    processes.kill(SIGKILL);
    deadline = Deadline::after(std::chrono::seconds(1));
  }
  receive_reports(reports, size, job);
}

}  // namespace

LocalResult run_local(int size, const std::vector<std::string>& arguments, const LocalOptions& options) {
  open_standard_descriptors();
  Signals signals;
  Supervision job(size);
  Processes processes;
  auto reports = make_reports();
  start_all(size, arguments, options, signals, reports[0].get(), processes);
  // The ranks' end stays open here, so that poll() does not see its closing as something to read.
  supervise(signals, reports[1].get(), size, options, processes, job);
  return job.result();
}

}  // namespace levada::launch
