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
#include <set>
#include <span>
#include <string_view>

#include "levada/base/deadline.h"
#include "levada/base/open_files.h"
#include "levada/base/signals_blocked.h"
#include "levada/engine/shm/shm.h"
#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"
#include "levada/launch/rank_environment.h"
#include "levada/launch/relay.h"

namespace levada::launch {
namespace {

[[noreturn]] void fail(std::string_view what) {
  throw EngineError(fmt::format("cannot start the ranks: {}: {}", what, std::strerror(errno)));
}

constexpr std::size_t max_exec_error = 256;  ///< bytes of exec_error() and the text before it
constexpr std::array watched_signals = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};

/// Pipe that the signal handler writes to, or -1 if there is no Signals object.
std::atomic<int> signal_pipe = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int number, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const std::array<char, 2> record{static_cast<char>(number), number == SIGINT && info->si_code == SI_KERNEL};
  // If the pipe is full, dropping the write is fine: there is enough to read.
  static_cast<void>(::write(signal_pipe, record.data(), record.size()));
  errno = error;
}

/// Makes the watched signals readable from a descriptor as long as the object lives, regardless of the thread that the
/// kernel delivers them to. Ignored signals stay ignored, except SIGCHLD. Only one object may exist at a time.
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
  /// Restores the previous handlers. Async-signal-safe.
  void restore() const {
    for (std::size_t i = 0; i < watched_signals.size(); ++i) ::sigaction(watched_signals[i], &before_[i], nullptr);
  }
  struct Signal {
    int number = 0;
    /// Whether it is Ctrl-C, which the kernel sends to all processes in the terminal's foreground, or has arrived
    /// before.
    bool ranks_have_it = false;
  };
  /// Returns the next signal that has arrived, if any.
  std::optional<Signal> next() {
    std::array<char, 2> record{};
    if (::read(read_.get(), record.data(), record.size()) != static_cast<ssize_t>(record.size())) return {};
    const bool is_repeated = !seen_.insert(record[0]).second;
    return Signal{record[0], record[1] != 0 || is_repeated};
  }

 private:
  std::array<struct sigaction, watched_signals.size()> before_{};
  UniqueFd read_, write_;
  std::set<int> seen_;
};

std::string this_program() {
  std::array<char, 4096> path{};
  const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
  std::string found(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (!found.empty() && ::access(found.c_str(), X_OK) == 0) return found;
  // If the program was replaced on disk, the link still leads to the old file. Use the program's name only if there is
  // no /proc.
  const auto* name = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));  // NOLINT(performance-no-int-to-ptr)
  return length <= 0 && name != nullptr ? name : "/proc/self/exe";
}

/// Everything that a rank is started with. Prepared before fork(), because nothing may be allocated between fork and
/// exec.
struct Start {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::vector<int> inherited;
  std::array<UniqueFd, 2> output;  ///< for standard output and error, if a Relay reads them
  std::vector<char> exec_failure;  ///< report to send if the program cannot be run, with room for the reason
  int report = -1;
  int rank = 0;
  pid_t parent = 0;
  bool is_program = false;  ///< LocalOptions::any_program
};

/// Returns why execve() failed. Async-signal-safe.
const char* exec_error(const char* program, int error) {
  if (error == ENOEXEC) return "it is neither a binary of this machine nor a script that begins with #!/";
  if (error == ENOENT && ::access(program, F_OK) == 0) return "the interpreter in its first line does not exist";
  const char* const known = ::strerrordesc_np(error);
  return known != nullptr ? known : "unknown error";
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Runs in the child after fork(). Arranges that the child dies with its parent and keeps its links, and executes the
/// program.
[[noreturn]] void become_rank(Start& start, const Signals& signals, const SignalsBlocked& blocked,
                              char* const* arguments, char* const* environment, int null) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(1);
  signals.restore();
  blocked.lift();
  if (start.rank != 0 || !start.is_program) ::dup2(null, STDIN_FILENO);
  if (start.rank != 0) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  if (start.output[0]) {
    ::dup2(start.output[0].get(), STDOUT_FILENO);
    ::dup2(start.output[1].get(), STDERR_FILENO);
  }
  // Python and Relay ignore SIGPIPE; programs do not expect to inherit that.
  if (start.is_program) ::signal(SIGPIPE, SIG_DFL);
  for (const int fd : start.inherited) ::fcntl(fd, F_SETFD, 0);
  ::execve(start.program.c_str(), arguments, environment);
  for (const char* each : {": ", exec_error(start.program.c_str(), errno)}) {
    start.exec_failure.insert(start.exec_failure.end(), each, each + std::strlen(each));
  }
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

/// The processes of a job. Kills those that are still running when destroyed.
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
  /// Records the processes that have ended.
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

/// Returns both ends of the channel of report_failure(), the ranks' first.
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

/// The properties that the ranks of a job share.
struct Job {
  int size = 1;
  const std::vector<std::string>& arguments;
  const LocalOptions& options;
  Relay* relay = nullptr;  ///< null if ranks write to this process's own descriptors
  std::optional<std::uint16_t> master_port = {};
};

void start_all(const Job& job, const Signals& signals, int report, Processes& processes) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // Both ends of each link, or, for ranks that have their own ends, one of each and two pipes.
  const std::size_t files_per_rank = job.relay == nullptr ? 2 : 3;
  reserve_open_files(files_per_rank * static_cast<std::size_t>(job.size) + 8, "the launcher");
  auto links = shm::make_links(job.size);
  Start start;
  start.program = job.options.program.empty() ? this_program() : job.options.program;
  start.arguments = {start.program};
  start.arguments.insert(start.arguments.end(), job.options.leading.begin(), job.options.leading.end());
  start.arguments.insert(start.arguments.end(), job.arguments.begin(), job.arguments.end());
  start.parent = ::getpid();
  start.is_program = job.options.any_program;
  start.report = report;
  for (int rank = 0; rank < job.size; ++rank) {
    std::vector<int> own;
    for (const auto& link : links[static_cast<std::size_t>(rank)]) {
      if (link) own.push_back(link.get());
    }
    start.rank = rank;
    start.environment = RankEnvironment{.rank = rank,
                                        .size = job.size,
                                        .links = own,
                                        .report = report,
                                        .master_port = job.master_port,
                                        .unbuffered = job.relay != nullptr && Relay::is_watched()}
                            .variables();
    start.inherited = std::move(own);
    start.inherited.push_back(report);
    start.exec_failure =
        encode_report(rank, ErrorKind::engine, fmt::format("rank {} cannot run {}", rank, start.program));
    start.exec_failure.reserve(start.exec_failure.size() + max_exec_error);
    if (job.relay != nullptr) start.output = job.relay->open_rank();
    processes.add(start_rank(start, signals, null.get()));
    links[static_cast<std::size_t>(rank)].clear();
  }
}

void take_signals(Signals& signals, const Processes& processes, Supervision& job) {
  while (const auto signal = signals.next()) {
    if (signal->number == SIGCHLD) continue;
    job.apply(Supervision::Signalled{signal->number});
    if (!signal->ranks_have_it) processes.kill(signal->number);
  }
}

/// Waits at most `wait` for signals, reports and output, and handles them.
void wait_for_events(Signals& signals, int reports, Duration wait, const Processes& processes, Relay* relay,
                     Supervision& job) {
  std::vector<pollfd> ready{pollfd{signals.fd(), POLLIN, 0}, pollfd{reports, POLLIN, 0}};
  const auto own = ready.size();
  if (relay != nullptr) {
    relay->add_to(ready);
    wait = std::min(wait, relay->max_wait());
  }
  const auto bounded = std::chrono::ceil<std::chrono::milliseconds>(std::min(wait, Duration(std::chrono::seconds(1))));
  const int changed =
      ::poll(ready.data(), ready.size(), wait == Duration::max() ? -1 : static_cast<int>(bounded.count()));
  // After an error, such as EINTR, poll() has not set revents.
  if (changed < 0) std::ranges::for_each(ready, [](pollfd& each) { each.revents = 0; });
  take_signals(signals, processes, job);
  if (relay != nullptr) relay->serve(std::span(ready).subspan(own));
}

/// Returns when all ranks have ended. Kills those still running some time after a failure or a signal.
void supervise(Signals& signals, int reports, const Job& what, Processes& processes, Supervision& job) {
  const auto& options = what.options;
  auto deadline = Deadline::never();
  while (!job.all_ended()) {
    wait_for_events(signals, reports, deadline.remaining(), processes, what.relay, job);
    receive_reports(reports, what.size, job);
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
  receive_reports(reports, what.size, job);
}

/// Writes the remaining output of ended ranks. If a signal ends the job, does not wait for a blocked reader.
void write_rest(Signals& signals, const Processes& processes, Relay& relay, Supervision& job) {
  relay.finish_reading();
  auto deadline = Deadline::never();
  while (relay.has_unwritten() && !deadline.expired()) {
    if (job.signal() != 0 && deadline.is_never()) deadline = Deadline::after(std::chrono::seconds(1));
    wait_for_events(signals, -1, deadline.remaining(), processes, &relay, job);
  }
}

/// Returns the result of a job that no signal ended, taking into account an error in writing the ranks' output.
LocalResult with_output_error(LocalResult result, int error) {
  if (error == 0) return result;
  if (error == EPIPE) {
    if (result.exit_status == 0) result.exit_status = 128 + SIGPIPE;
    return result;
  }
  return {.exit_status = 1,
          .first_failed = result.first_failed,
          .message = fmt::format("cannot write to standard output: {}", std::strerror(error))};
}

}  // namespace

LocalResult run_local(int size, const std::vector<std::string>& arguments, const LocalOptions& options) {
  open_standard_descriptors();
  Signals signals;
  Supervision job(size);
  std::optional<Relay> relay;
  if (options.any_program && size > 1) relay.emplace();
  std::optional<ReservedPort> port;
  if (options.any_program) port.emplace();
  Processes processes;
  auto reports = make_reports();
  const Job what{.size = size,
                 .arguments = arguments,
                 .options = options,
                 .relay = relay ? &*relay : nullptr,
                 .master_port = port ? std::optional(port->number()) : std::nullopt};
  start_all(what, signals, reports[0].get(), processes);
  // The ranks' end stays open here, so that poll() does not report its closing.
  supervise(signals, reports[1].get(), what, processes, job);
  if (!relay) return job.result();
  write_rest(signals, processes, *relay, job);
  return job.signal() != 0 ? job.result() : with_output_error(job.result(), relay->output_error());
}

}  // namespace levada::launch
