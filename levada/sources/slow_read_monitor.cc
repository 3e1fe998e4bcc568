#include "levada/sources/slow_read_monitor.h"

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/threads.h"

namespace levada {

struct SlowReadMonitor::State {
  static constexpr std::size_t no_slot = SIZE_MAX;

  struct Slot {
    const std::string* path = nullptr;  ///< null if the slot is unused
    std::uint64_t offset = 0;
    Clock::time_point begin, due;  ///< start of the read; time of its next warning
  };

  Duration after;
  std::function<void(const std::string&)> warn;
  std::atomic<pid_t> process = 0;  ///< the process that runs the thread; 0 before it starts

  std::mutex mutex;
  std::condition_variable over_changed;
  // Guarded by mutex.
  std::vector<Slot> slots;
  std::uint64_t reads = 0;  ///< begun so far
  std::thread thread;
  bool running = false, over = false;
  Clock::time_point next_start;  ///< after a refusal of the thread

  bool is_forked() const { return process != 0 && process != ::getpid(); }

  std::size_t add(const std::string& path, std::uint64_t offset) {
    if (is_forked()) return no_slot;
    const auto now = Clock::now();
    const std::lock_guard lock(mutex);
    if (!running && now >= next_start) start(now);
    auto slot = std::ranges::find(slots, nullptr, &Slot::path);
    if (slot == slots.end()) slot = slots.insert(slot, Slot());
    *slot = {&path, offset, now, now + after};
    ++reads;
    return static_cast<std::size_t>(slot - slots.begin());
  }

  void start(Clock::time_point now) {
    if (thread.joinable()) thread.join();  // It has already signaled its end and only has to return.
    process = ::getpid();
    try {
      thread = start_thread("watching reads", [this] { watch(); });
      running = true;
    } catch (const EngineError&) {
      next_start = now + after;  // The read matters more than its warnings.
    }
  }

  void remove(std::size_t slot) {
    if (slot == no_slot) return;
    const std::lock_guard lock(mutex);
    slots[slot].path = nullptr;
  }

  /// Warns of reads that are due. Reads that begin later are due later, so they need not wake this thread.
  void watch() {
    std::unique_lock lock(mutex);
    for (auto seen = reads - 1; !over;) {
      const auto now = Clock::now();
      auto next = now + after;
      bool idle = seen == reads;
      seen = reads;
      std::vector<std::string> warnings;
      for (auto& slot : slots) {
        if (slot.path == nullptr) continue;
        idle = false;
        if (now >= slot.due) {
          const auto taken = slot.due - slot.begin;
          warnings.push_back(fmt::format("reading byte {} of {} has taken {} so far: its storage is slow, or hangs",
                                         slot.offset, *slot.path, format_duration(taken)));
          slot.due = slot.begin + 2 * taken;
        }
        next = std::min(next, slot.due);
      }
      if (idle) break;
      lock.unlock();
      for (const auto& warning : warnings) warn(warning);
      lock.lock();
      over_changed.wait_until(lock, next, [&] { return over; });
    }
    running = false;
  }
};

SlowReadMonitor::SlowReadMonitor(Duration after, std::function<void(const std::string&)> warn)
    : state_(std::make_unique<State>()) {
  state_->after = after;
  state_->warn = std::move(warn);
}

SlowReadMonitor::~SlowReadMonitor() {
  if (state_->is_forked()) {
    static_cast<void>(state_.release());  // The thread cannot be joined here, and may have held the mutex.
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->over_changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

SlowReadMonitor::Read SlowReadMonitor::begin(const std::string& path, std::uint64_t offset) {
  return Read(*state_, state_->add(path, offset));
}

SlowReadMonitor::Read::~Read() {
  state_.remove(slot_);
}

namespace {

class MonitoredFile final : public File {
 public:
  MonitoredFile(std::unique_ptr<File> file, std::shared_ptr<SlowReadMonitor> monitor)
      : file_(std::move(file)), monitor_(std::move(monitor)) {}

  const std::string& path() const override { return file_->path(); }
  FileIdentity identity() const override { return file_->identity(); }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    const auto here = monitor_->begin(path(), offset);
    return file_->read(offset, into);
  }

 private:
  std::unique_ptr<File> file_;
  std::shared_ptr<SlowReadMonitor> monitor_;
};

}  // namespace

std::unique_ptr<File> make_monitored_file(std::unique_ptr<File> file, std::shared_ptr<SlowReadMonitor> monitor) {
  return std::make_unique<MonitoredFile>(std::move(file), std::move(monitor));
}

}  // namespace levada
