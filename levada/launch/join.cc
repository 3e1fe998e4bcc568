#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "levada/base/bytes.h"
#include "levada/base/text.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/shm.h"
#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"

namespace levada::launch {
namespace {

/// Descriptors come over exec without close-on-exec and get it as they are taken up: so nothing that this process
/// starts inherits them, and they are not taken twice.
UniqueFd take_descriptor(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) {
    throw InvalidArgument(fmt::format(
        "{} names descriptor {}, which is not open for this process to take; a process joins its job once, and its "
        "children are not ranks",
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

void check_joinable(const Environment& job, const JoinOptions& options) {
  if (options.engine == "inproc") {
    throw InvalidArgument(fmt::format(
        "the engine inproc joins threads of one process, but this is one of {} processes that {} started; use shm",
        job.size, job.launcher));
  }
  if (job.local_size != job.size) {
    throw Unsupported(fmt::format(
        "{} started {} ranks of which {} are on this host, and no engine of this build reaches other hosts; start all "
        "ranks on one host",
        job.launcher, job.size, job.local_size));
  }
}

}  // namespace

std::vector<std::string> engines() {
  return {"inproc", "shm"};
}

void check_engine(std::string_view name) {
  const auto known = engines();
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw InvalidArgument(fmt::format("there is no engine {} in this build; there are {}", name, fmt::join(known, ", ")));
}

std::string join_numbers(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::vector<UniqueFd> take_links(const char* text, int rank, int size) {
  std::vector<UniqueFd> links;
  if (rank == 0) links.emplace_back();
  const std::string_view list = text;
  for (std::size_t at = 0; at < list.size();) {
    int fd = -1;
    const auto [end, error] = std::from_chars(list.data() + at, list.data() + list.size(), fd);
    if (error != std::errc{}) break;
    links.push_back(take_descriptor(fd));
    at = static_cast<std::size_t>(end - list.data()) + 1;
  }
  const auto expected = static_cast<std::size_t>(rank == 0 ? size : 1);
  if (links.size() != expected) {
    throw InvalidArgument(
        fmt::format("{} is '{}', which are not the descriptors of rank {} of {}", links_variable, list, rank, size));
  }
  return links;
}

std::shared_ptr<Engine> join(const JoinOptions& options) {
  if (options.engine != "auto") check_engine(options.engine);
  const auto job = detect([](const char* name) -> const char* { return std::getenv(name); });
  if (!job || job->size == 1) return join_alone(options);
  check_joinable(*job, options);
  if (const char* links = std::getenv(links_variable); links != nullptr && job->launcher == "levada") {
    return shm::join(job->rank, job->size, take_links(links, job->rank, job->size), {.timeout = options.timeout});
  }
  const auto rendezvous =
      job->rendezvous.empty() ? fmt::format("{}:parent:{}", job->launcher, ::getppid()) : job->rendezvous;
  return shm::meet(job->rank, job->size, rendezvous, {.timeout = options.timeout});
}

bool report_failure(ErrorKind kind, std::string_view message) noexcept {
  const char* text = std::getenv(report_variable);
  const char* rank = std::getenv("LEVADA_RANK");
  if (text == nullptr || rank == nullptr) return false;
  const int fd = std::atoi(text);
  struct stat what {};
  if (::fstat(fd, &what) != 0 || !S_ISSOCK(what.st_mode)) return false;
  constexpr std::size_t longest = 4000;
  std::array<char, longest + 8> record{};
  const std::int32_t head[2] = {std::atoi(rank), static_cast<std::int32_t>(kind)};
  std::memcpy(record.data(), head, sizeof head);
  message = cut_text(message, longest);
  std::memcpy(record.data() + sizeof head, message.data(), message.size());
  const std::size_t bytes = sizeof head + message.size();
  return ::send(fd, record.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

}  // namespace levada::launch
