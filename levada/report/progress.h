// A progress line on a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levada/base/deadline.h"

namespace levada::report {

struct Progress {
  std::string what;                    ///< "feeding"
  std::uint64_t done = 0;              ///< amount done, from 0 to `total`
  std::optional<std::uint64_t> total;  ///< empty if unknown
  std::string amount;                  ///< `done` in words: "90 of 200 steps"
  double seconds = 0;                  ///< elapsed time
};

/// Returns "feeding [███████         ]  45%  90 of 200 steps, 0:04 left", shorter than `columns`.
std::string render_progress(const Progress& progress, int columns);

/// Keeps a progress line on standard error up to date, at most ten times a second, and clears it when destroyed. Prints
/// nothing unless standard error is a terminal. One thread at a time.
class ProgressLine {
 public:
  /// Never prints anything if `wanted` is false.
  explicit ProgressLine(std::string what, bool wanted = true);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Returns whether an update would be shown now, so that callers can skip preparing one.
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
