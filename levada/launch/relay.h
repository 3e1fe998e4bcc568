// Ranks that write to the same terminal or file interleave within lines. A Relay reads each rank's output from a pipe
// and writes it to this process's own output, whole lines at a time.
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
  /// Removes and returns the complete lines, including their ends. Removes and returns all bytes if there is no
  /// complete line and more than `max_bytes` have accumulated.
  std::string take_lines();
  /// Removes and returns the bytes that no line end follows.
  std::string take_rest();
  bool is_empty() const { return held_.empty(); }

 private:
  std::string held_;
  std::size_t scanned_ = 0;  ///< bytes of held_ that contain no line end
};

/// Prefixes lines on a terminal with the rank that wrote them, as in "[2] ".
class LinePrefixer {
 public:
  /// Returns the text that the terminal should show for `text` from stream `stream` of `rank`. If the previous text was
  /// from another stream and did not end its line, ends that line first.
  std::string show(int rank, int stream, std::string_view text);

 private:
  struct Open {
    int rank = 0;
    int stream = 0;
    bool operator==(const Open&) const = default;
  };
  std::optional<Open> open_;    ///< stream whose line the terminal's cursor is in
  bool may_have_rest_ = false;  ///< whether the cursor is at the start of a line that contains text
};

/// Relays the output of all ranks. Makes this process ignore SIGPIPE as long as the object lives. Not thread-safe.
class Relay {
 public:
  Relay();
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Returns whether standard output is a terminal, whose user should see each line at once.
  static bool is_watched();
  /// Returns the descriptors for the next rank's standard output and error. Throws EngineError if there are no pipes
  /// left.
  std::array<UniqueFd, 2> open_rank();
  /// Appends the descriptors to wait for.
  void add_to(std::vector<pollfd>& polls) const;
  /// Returns the longest time to wait.
  Duration max_wait() const;
  /// Reads and writes as much as possible without blocking. `polls` are those that add_to() appended, after poll().
  void serve(std::span<const pollfd> polls);
  /// Reads what ended ranks have left in their pipes, including unfinished lines. No pipe is read after that.
  void finish_reading();
  bool has_unwritten() const;
  /// Returns the error that closed standard output, or 0 if there was none.
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
