// Which thread is at work in an object that one thread at a time may use.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "levada/base/deadline.h"
#include "levada/base/error.h"

namespace levada::python {

/// Remembers the thread that is inside. Entered and left with the GIL, which guards it; asked on any thread.
class Occupancy {
 public:
  bool is_free() const { return thread_.load() == std::thread::id(); }
  /// Whether the calling thread is inside.
  bool is_mine() const { return thread_.load() == std::this_thread::get_id(); }

  /// Waits until no other thread is inside or the deadline has passed. Releases the GIL meanwhile. Throws what a signal
  /// handler raises.
  void wait_for_others(Deadline deadline) const {
    while (!is_free() && !is_mine() && !deadline.expired()) {
      {
        const nanobind::gil_scoped_release released;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    }
  }

  /// The calling thread is inside while this lives.
  class Entry {
   public:
    /// Throws InvalidArgument where a thread is inside already. `what`: the object, such as "this feed".
    Entry(Occupancy& occupancy, std::string_view what) : occupancy_(occupancy) {
      if (!occupancy.is_free()) {
        throw InvalidArgument(
            fmt::format("a call of {} is under way, on another thread or interrupted by a signal", what));
      }
      occupancy.thread_ = std::this_thread::get_id();
    }
    ~Entry() { occupancy_.thread_ = std::thread::id(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Occupancy& occupancy_;
  };

 private:
  std::atomic<std::thread::id> thread_{};
};

}  // namespace levada::python
