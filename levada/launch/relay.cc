#include "levada/launch/relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "levada/base/error.h"

namespace levada::launch {
namespace {

constexpr int max_last_reads = 16;                           // a mebibyte, the largest pipe
constexpr std::size_t max_unwritten = std::size_t{1} << 18;  // beyond this, ranks wait
/// How long a line of rank 0 may stay incomplete at an interactive terminal before it is shown, because it may be a
/// prompt.
constexpr Duration open_line_wait = std::chrono::milliseconds(100);

bool ends_line(char byte) {
  return byte == '\n' || byte == '\r';
}

}  // namespace

std::string LineCutter::take_lines() {
  // The next byte decides whether a carriage return at the end ends a line.
  const auto known = held_.size() - (held_.ends_with('\r') ? 1 : 0);
  const auto from = scanned_;
  scanned_ = known;
  const auto end = std::string_view(held_).substr(0, known).find_last_of("\r\n");
  if (end == std::string_view::npos || end < from) return held_.size() > max_bytes ? take_rest() : std::string();
  std::string lines = held_.substr(0, end + 1);
  held_.erase(0, end + 1);
  scanned_ = known - lines.size();
  return lines;
}

std::string LineCutter::take_rest() {
  scanned_ = 0;
  return std::exchange(held_, {});
}

std::string LinePrefixer::show(int rank, int stream, std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    auto end = text.find_first_of("\r\n");
    if (end != std::string_view::npos && text.substr(end).starts_with("\r\n")) ++end;
    const auto line = text.substr(0, end == std::string_view::npos ? end : end + 1);
    text.remove_prefix(line.size());
    if (open_ != Open{rank, stream}) {
      if (open_) shown += '\n';
      if (line != "\r") shown += fmt::format("[{}] ", rank);
    }
    // Clears the text of the line that ended with a carriage return.
    if (may_have_rest_ && line != "\r") shown += "\x1b[K";
    shown += line;
    may_have_rest_ = line.ends_with('\r') && (may_have_rest_ || line != "\r");
    open_ = ends_line(line.back()) ? std::nullopt : std::optional(Open{rank, stream});
  }
  return shown;
}

/// A file that receives ranks' output.
struct Relay::Sink {
  explicit Sink(int descriptor) : fd(descriptor), is_terminal(::isatty(descriptor) != 0) {
    struct stat what {};
    is_file = ::fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
  }

  void add(int rank, int stream, std::string_view text) {
    if (error == 0) unwritten += is_terminal ? prefixer.show(rank, stream, text) : text;
  }
  void write_some();

  int fd;
  bool is_terminal;
  bool is_file = false;
  LinePrefixer prefixer;
  std::string unwritten;
  int error = 0;
};

/// If a pipe or terminal is ready, writing at most PIPE_BUF bytes does not block.
void Relay::Sink::write_some() {
  auto bytes = unwritten.size();
  if (!is_file && bytes > PIPE_BUF) {
    const auto end = std::string_view(unwritten).substr(0, PIPE_BUF).find_last_of("\r\n");
    bytes = end == std::string_view::npos ? PIPE_BUF : end + 1;
  }
  const auto written = ::write(fd, unwritten.data(), bytes);
  if (written >= 0) {
    unwritten.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EINTR && errno != EAGAIN) {
    error = errno;
    unwritten.clear();
  }
}

/// The standard output or error of one rank.
struct Relay::Stream {
  int rank = 0;
  int number = 0;  ///< 0 for standard output, 1 for standard error
  UniqueFd fd;
  std::shared_ptr<Sink> sink;
  LineCutter lines = {};
  bool is_dialog = false;                  ///< whether a user may have to answer it
  Deadline open_line = Deadline::never();  ///< when a line without an end is shown
};

namespace {

bool is_same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

UniqueFd open_pipe(UniqueFd& reading) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw EngineError(fmt::format("cannot start the ranks: pipe: {}", std::strerror(errno)));
  }
  reading = UniqueFd(fds[0]);
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return UniqueFd(fds[1]);
}

}  // namespace

Relay::Relay() {
  sinks_[0] = std::make_shared<Sink>(STDOUT_FILENO);
  sinks_[1] = is_same_file(STDOUT_FILENO, STDERR_FILENO) ? sinks_[0] : std::make_shared<Sink>(STDERR_FILENO);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before_);
}

Relay::~Relay() {
  ::sigaction(SIGPIPE, &before_, nullptr);
}

bool Relay::is_watched() {
  return ::isatty(STDOUT_FILENO) != 0;
}

std::array<UniqueFd, 2> Relay::open_rank() {
  std::array<UniqueFd, 2> ends;
  for (int number = 0; number < 2; ++number) {
    const auto at = static_cast<std::size_t>(number);
    Stream stream{.rank = ranks_, .number = number, .fd = {}, .sink = sinks_[at]};
    stream.is_dialog = ranks_ == 0 && stream.sink->is_terminal && ::isatty(STDIN_FILENO) != 0;
    ends[at] = open_pipe(stream.fd);
    streams_.push_back(std::move(stream));
  }
  ++ranks_;
  return ends;
}

void Relay::add_to(std::vector<pollfd>& polls) const {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    const bool is_first = i == 0 || sinks_[i] != sinks_[0];  // two writes after one poll() might block
    polls.push_back({is_first && !sinks_[i]->unwritten.empty() ? sinks_[i]->fd : -1, POLLOUT, 0});
  }
  for (const auto& stream : streams_) {
    const bool is_read = stream.fd && stream.sink->unwritten.size() < max_unwritten;
    polls.push_back({is_read ? stream.fd.get() : -1, POLLIN, 0});
  }
}

Duration Relay::max_wait() const {
  auto wait = Duration::max();
  for (const auto& stream : streams_) {
    if (!stream.open_line.is_never()) wait = std::min(wait, stream.open_line.remaining());
  }
  return wait;
}

void Relay::serve(std::span<const pollfd> polls) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    auto& stream = streams_[i];
    if (polls[sinks_.size() + i].revents != 0) read(stream);
    if (stream.open_line.expired()) pass_open_line(stream);
  }
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    if (polls[i].revents != 0 && !sinks_[i]->unwritten.empty()) sinks_[i]->write_some();
  }
  // A rank that writes to a failed output gets the error or SIGPIPE that the output itself would cause.
  for (auto& stream : streams_) {
    if (stream.sink->error != 0) stream.fd = {};
  }
}

/// Reads once. At the end of the stream, a terminal shows an incomplete line at once. A file waits for
/// finish_reading(), because another rank's line would continue it.
void Relay::read(Stream& stream) {
  std::array<char, LineCutter::max_bytes> bytes;
  const auto got = ::read(stream.fd.get(), bytes.data(), bytes.size());
  if (got > 0) {
    stream.lines.append({bytes.data(), static_cast<std::size_t>(got)});
    pass_lines(stream);
  } else if (got == 0) {
    stream.fd = {};
    if (stream.sink->is_terminal) pass_open_line(stream);
  }
}

void Relay::pass_lines(Stream& stream) {
  stream.sink->add(stream.rank, stream.number, stream.lines.take_lines());
  const bool is_open = stream.is_dialog && !stream.lines.is_empty();
  stream.open_line = is_open ? Deadline::after(open_line_wait) : Deadline::never();
}

void Relay::pass_open_line(Stream& stream) {
  auto rest = stream.lines.take_rest();
  // Ends a terminal's line in which the stream has ended.
  if (!stream.fd && stream.sink->is_terminal && !rest.empty()) rest += '\n';
  stream.sink->add(stream.rank, stream.number, rest);
  stream.open_line = Deadline::never();
}

void Relay::finish_reading() {
  for (auto& stream : streams_) {
    // Does not read until end-of-file, which a process that a rank has started may delay.
    for (int reads = 0; stream.fd && reads < max_last_reads; ++reads) read(stream);
    stream.fd = {};
    pass_open_line(stream);
  }
}

bool Relay::has_unwritten() const {
  return std::ranges::any_of(sinks_, [](const auto& sink) { return !sink->unwritten.empty(); });
}

int Relay::output_error() const {
  return sinks_[0]->error;
}

}  // namespace levada::launch
