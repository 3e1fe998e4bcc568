#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <sstream>
#include <utility>

#include "levada/base/bytes.h"
#include "levada/base/text.h"
#include "levada/engine/choice.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/shm.h"
#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"
#include "levada/launch/user_secret.h"

namespace levada::launch {
namespace {

/// Returns the inode of the socket at a descriptor, or nothing if there is none.
std::optional<ino_t> socket_at(int fd) {
  struct stat what {};
  if (::fstat(fd, &what) != 0 || !S_ISSOCK(what.st_mode)) return {};
  return what.st_ino;
}

/// Takes ownership of a socket that was passed across exec without close-on-exec, and sets that flag, so that no
/// process that this one starts inherits the socket and it cannot be taken twice.
UniqueFd take_socket(int fd, ino_t socket) {
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0 || socket_at(fd) != std::optional<ino_t>(socket)) {
    throw InvalidArgument(
        fmt::format("{} names descriptor {}, which is not available to this process; a process joins its job once, and "
                    "its children are not ranks",
                    links_variable, fd));
  }
  ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  return UniqueFd(fd);
}

std::shared_ptr<Engine> join_alone(const JoinOptions& options) {
  if (options.engine != "shm") return inproc::make_group(1).front();
  auto links = shm::make_links(1);
  return shm::join(0, 1, std::move(links.front()), {.timeout = options.timeout});
}

constexpr std::string_view remedy =
    "to join ranks of several hosts, initialize torch.distributed first (in Python) or call levada::mpi::join() (in "
    "C++)";

void check_joinable(const Environment& job, const JoinOptions& options) {
  if (options.engine == "inproc") {
    throw InvalidArgument(
        fmt::format("the engine inproc joins threads of one process, but {} say that this is one of {}; use shm",
                    job.source, job.size));
  }
  if (job.local_size.value_or(job.size) != job.size) {
    throw Unsupported(fmt::format("rank {} is one of {}, but {} gives this host only {}; {}", job.rank, job.size,
                                  job.local_size_source, *job.local_size, remedy));
  }
}

shm::MeetingPlace meeting_place_of(const Environment& job) {
  return {job.rendezvous.empty() ? fmt::format("parent process {}", ::getppid()) : job.rendezvous, user_secret()};
}

/// Returns the end of a report of a wait: the variables may be those of another job, and the other ranks may be on
/// other hosts.
std::string hint_about(const Environment& job) {
  const auto stale = fmt::format("; if no launcher has started this process, unset {}, by which it is one of {} ranks",
                                 job.source, job.size);
  if (job.local_size) return stale;
  return fmt::format("{}; no variable says how many ranks are on this host: {}", stale, remedy);
}

/// Meets the other ranks.
std::shared_ptr<Engine> meet(const Environment& job, const JoinOptions& options) {
  const auto hint = hint_about(job);
  const auto with_hint = [&](const std::function<void(const std::string&)>& write) {
    return write ? [=](const std::string& text) { write(text + hint); } : write;
  };
  try {
    return shm::meet(job.rank, job.size, meeting_place_of(job),
                     {.timeout = options.timeout,
                      .remind = with_hint(options.remind),
                      .report = with_hint(options.report),
                      .stop = options.stop});
  } catch (const Timeout& error) {
    const bool is_given = std::getenv(secret_variable) != nullptr;
    throw Timeout(
        error.what() + hint +
        (is_given ? "" : fmt::format("; ranks in containers that do not share /tmp need {}", secret_variable)));
  }
}

struct ReportChannel {
  int fd = -1;
  bool taken = false;       ///< whether this process, or the one that it was forked from, has taken it
  bool is_started = false;  ///< whether this process itself was started as the rank
};

/// Returns the channel in this process's variable, if it is still open. In a process that a rank starts, that
/// descriptor may refer to another file.
std::optional<ReportChannel> report_channel_here() {
  const char* text = std::getenv(report_variable);
  if (text == nullptr) return {};
  ReportChannel channel;
  int parent = 0;
  unsigned long socket = 0;
  if (std::sscanf(text, "%d,%d,%lu", &channel.fd, &parent, &socket) != 3) return {};
  if (socket_at(channel.fd) != std::optional<ino_t>(socket)) return {};
  channel.taken = (::fcntl(channel.fd, F_GETFD) & FD_CLOEXEC) != 0;
  channel.is_started = ::getppid() == parent;
  return channel;
}

std::optional<int> reporting_descriptor() {
  const auto channel = report_channel_here();
  if (!channel || !(channel->taken || channel->is_started)) return {};
  return channel->fd;
}

}  // namespace

std::string report_channel(int descriptor) {
  return fmt::format("{},{},{}", descriptor, ::getpid(), socket_at(descriptor).value_or(0));
}

std::vector<char> encode_report(int rank, ErrorKind kind, std::string_view message) {
  constexpr std::size_t max_bytes = 4000;
  const std::int32_t head[2] = {rank, static_cast<std::int32_t>(kind)};
  message = cut_text(message, max_bytes);
  std::vector<char> report(sizeof head + message.size());
  std::memcpy(report.data(), head, sizeof head);
  std::copy(message.begin(), message.end(), report.begin() + sizeof head);
  return report;
}

void inherit_report_channel() {
  if (const auto channel = report_channel_here()) ::fcntl(channel->fd, F_SETFD, FD_CLOEXEC);
}

void open_standard_descriptors() {
  // Open it read-only, so that no write appears to succeed.
  int fd = ::open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDONLY);
  if (fd > STDERR_FILENO) ::close(fd);
}

std::vector<std::string> engines() {
  return {"inproc", "shm"};
}

void check_engine(std::string_view name) {
  const auto known = engines();
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  for (const auto& [ending, caller] : {std::pair("mpi", "C++ programs that call levada::mpi::join()"),
                                       std::pair("c10d", "Python programs that call levada.join()")}) {
    if (name != ending && name != fmt::format("shm+{}", ending)) continue;
    throw InvalidArgument(
        fmt::format("the engine {} is for {}; this build has {}", name, caller, fmt::join(known, ", ")));
  }
  throw InvalidArgument(fmt::format("there is no engine {} in this build; there are {}", name, fmt::join(known, ", ")));
}

std::string links_text(const std::vector<int>& descriptors) {
  std::string text;
  for (const int fd : descriptors)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", fd, socket_at(fd).value_or(0));
  return text;
}

std::vector<UniqueFd> inherit_links(const char* text, int rank, int size) {
  std::vector<UniqueFd> links;
  if (rank == 0) links.emplace_back();
  const std::string_view list = text;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int fd = -1;
    unsigned long socket = 0;
    if (std::sscanf(entry.c_str(), "%d:%lu", &fd, &socket) != 2) break;
    links.push_back(take_socket(fd, socket));
  }
  const auto expected = static_cast<std::size_t>(rank == 0 ? size : 1);
  if (links.size() != expected) {
    throw InvalidArgument(fmt::format("{} is '{}', which does not name the descriptors of rank {} of {}",
                                      links_variable, list, rank, size));
  }
  return links;
}

namespace {

/// Returns whether run_local() started the job's ranks.
bool started_here(const Environment& job) {
  return std::getenv(links_variable) != nullptr && job.source.starts_with("LEVADA_");
}

std::shared_ptr<Engine> join_job(const JoinOptions& options) {
  const auto job = detect();
  if (!job || job->size == 1) return join_alone(options);
  check_joinable(*job, options);
  if (started_here(*job)) {
    inherit_report_channel();
    return shm::join(job->rank, job->size, inherit_links(std::getenv(links_variable), job->rank, job->size),
                     {.timeout = options.timeout, .stop = options.stop});
  }
  return meet(*job, options);
}

}  // namespace

std::shared_ptr<Engine> join(const JoinOptions& options) {
  if (options.engine != "auto") check_engine(options.engine);
  auto engine = join_job(options);
  log_engine(engine->info());
  return engine;
}

bool refuse_start(ErrorKind kind, const std::string& message) noexcept try {
  const auto job = detect();
  if (!job || job->size == 1 || started_here(*job)) return false;
  return shm::refuse_start(job->rank, job->size, meeting_place_of(*job), kind, message);
} catch (const std::exception&) {  // no rank can be notified
  return false;
}

bool report_failure(ErrorKind kind, std::string_view message) noexcept try {
  const auto fd = reporting_descriptor();
  const char* rank = std::getenv("LEVADA_RANK");
  if (!fd || rank == nullptr) return false;
  const auto report = encode_report(std::atoi(rank), kind, message);
  return ::send(*fd, report.data(), report.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(report.size());
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace levada::launch
