// Ranks that write to one terminal or file tear each other's lines. A Relay reads what each rank prints from a pipe and
// writes it to this process's own output, whole lines at a time.
#pragma once

#include <poll.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"

namespace levada::launch {

/// Cuts the bytes of one stream into lines. A carriage return that no newline follows ends a line too, so that progress
/// bars move.
class LineCutter {
 public:
  static constexpr std::size_t max_bytes = std::size_t{1} << 16;

  void append(std::string_view bytes) { held_ += bytes; }
  /// Returns the whole lines that have been appended, with their ends, and forgets them. Returns all bytes if those
  /// without an end are more than `max_bytes`.
  std::string take_lines();
  /// Returns the bytes that no line end follows, and forgets them.
  std::string take_rest();
  bool is_empty() const { return held_.empty(); }

 private:
  std::string held_;
  std::size_t scanned_ = 0;  ///< bytes of held_ that contain no line end
};

/// Prefixes lines with the rank that wrote them, as in "[2] ", for a terminal.
class LinePrefixer {
 public:
  /// Returns what the terminal is to show for `text` of stream `stream` of `rank`. If the text before it did not end
  /// its line and was from another stream, the line is ended first.
  std::string show(int rank, int stream, std::string_view text);

 private:
  struct Open {
    int rank = 0;
    int stream = 0;
    bool operator==(const Open&) const = default;
  };
  std::optional<Open> open_;    ///< the stream whose line the terminal's cursor is in
  bool may_have_rest_ = false;  ///< whether the cursor is at the start of a line that has text
};

/// Not thread-safe. Ignores SIGPIPE in this process while it lives.
class Relay {
 public:
  Relay();
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Whether standard output is a terminal, whose reader should see each line at once.
  static bool is_watched();
  /// Returns the descriptors for the next rank's standard output and error. Throws EngineError if there are no pipes
  /// left.
  std::array<UniqueFd, 2> open_rank();
  /// Appends the descriptors to wait for.
  void add_to(std::vector<pollfd>& polls) const;
  /// Returns the longest time to wait.
  Duration max_wait() const;
  /// Reads and writes as much as possible without blocking. `polls`: those of add_to(), after poll().
  void serve(std::span<const pollfd> polls);
  /// Reads what ranks that have ended left in their pipes, unfinished lines included. No pipe is read after that.
  void finish_reading();
  bool has_unwritten() const;
  /// Returns the error that closed standard output; 0 if there was none.
  int output_error() const;

 private:
  struct Sink;
  struct Stream;
  void read(Stream& stream);
  void pass_lines(Stream& stream);
  void pass_open_line(Stream& stream);

  std::array<std::shared_ptr<Sink>, 2> sinks_;  ///< for standard output and error; the same one if both are one file
  std::vector<Stream> streams_;
  int ranks_ = 0;
  struct sigaction before_ {};
};

}  // namespace levada::launch
