// A line of progress on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levada/base/deadline.h"

namespace levada::report {

struct Progress {
  std::string what;                    ///< "feeding"
  std::uint64_t done = 0;              ///< of `total`
  std::optional<std::uint64_t> total;  ///< empty if it is not known
  std::string amount;                  ///< what is done, in words: "90 of 200 steps"
  double seconds = 0;                  ///< so far
};

/// "feeding [███████         ]  45%  90 of 200 steps, 0:04 left", shorter than `columns`.
std::string render_progress(const Progress& progress, int columns);

/// Keeps such a line up to date on standard error: ten times a second at most, gone when this is destroyed. Says
/// nothing unless standard error is a terminal. One thread at a time.
class ProgressLine {
 public:
  /// With `wanted` false it never prints anything.
  explicit ProgressLine(std::string what, bool wanted = true);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Whether an update would be seen now: saves a caller the making of it.
  bool is_due() const { return shown_ && Clock::now() >= next_; }
  void update(std::uint64_t done, std::optional<std::uint64_t> total, const std::string& amount);
  void clear();

 private:
  std::string what_;
  bool shown_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_;
};

}  // namespace levada::report
