// Warnings of slow reads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "levada/base/deadline.h"
#include "levada/sources/file.h"

namespace levada {

/// Warns of each read that takes longer than `after`, naming the file, and again each time the duration has doubled.
/// Runs at most one thread, which ends after a while without reads. Does not warn if the system refuses the thread, or
/// in a process forked after the first read. Thread-safe.
class SlowReadMonitor {
 public:
  SlowReadMonitor(Duration after, std::function<void(const std::string&)> warn);
  ~SlowReadMonitor();

  class Read;
  /// Begins a read, which ends when the returned object is destroyed. Borrows `path`.
  Read begin(const std::string& path, std::uint64_t offset);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A running read.
class SlowReadMonitor::Read {
 public:
  Read(State& state, std::size_t slot) : state_(state), slot_(slot) {}
  Read(const Read&) = delete;
  Read& operator=(const Read&) = delete;
  ~Read();

 private:
  State& state_;
  std::size_t slot_;
};

/// Returns `file` with its reads monitored.
std::unique_ptr<File> make_monitored_file(std::unique_ptr<File> file, std::shared_ptr<SlowReadMonitor> monitor);

}  // namespace levada
