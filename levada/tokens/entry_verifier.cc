#include "levada/tokens/entry_verifier.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/tokens/cache_entry.h"
#include "levada/tokens/cache_folder.h"

namespace levada {
namespace {

/// Sets this thread's CPU and I/O priority to the lowest. If the system refuses, the priority stays unchanged.
void lower_priority() {
  constexpr int io_of_thread = 1, io_class_idle = 3 << 13;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
  ::syscall(SYS_ioprio_set, io_of_thread, 0, io_class_idle);
}

}  // namespace

struct EntryVerifier::State {
  /// Ends the read of an entry when the verifier is destroyed.
  struct Stopped {};

  const std::shared_ptr<TokenCache> cache;
  std::atomic<pid_t> process = 0;  ///< the process that runs the thread; 0 before it starts

  std::mutex mutex;
  std::condition_variable wake;
  // Guarded by mutex.
  std::set<const TokenFile*> used;
  std::deque<std::string> waiting;  ///< prefixes of entries
  std::string damage;               ///< the error; empty if no entry is damaged
  bool over = false;

  Clock::time_point last_rest;  ///< used only by the thread
  ThreadGroup thread;

  explicit State(std::shared_ptr<TokenCache> of) : cache(std::move(of)) {}

  bool is_forked() const { return process != 0 && process != ::getpid(); }

  void start() {
    process = ::getpid();
    try {
      thread.start("verifying the token cache", [this] { run(); });
    } catch (const EngineError&) {
      waiting.clear();
    }
  }

  void run() {
    lower_priority();
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return over || !waiting.empty(); });
      if (over) return;
      const auto prefix = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      const auto found = verify(prefix);
      lock.lock();
      if (damage.empty()) damage = found;
    }
  }

  /// Returns the error if the entry is damaged, otherwise an empty string.
  std::string verify(const std::string& prefix) {
    last_rest = Clock::now();
    try {
      cache->folder().verify(prefix, [this] { rest(); });
    } catch (const Stopped&) {
    } catch (const DamagedEntry& error) {
      return fmt::format("{}; batches of this run may hold damaged tokens: resume from an earlier state", error.what());
    } catch (const std::exception&) {
      // An entry that cannot be read now stays unverified: the feed that reads it reports the better error.
    }
    return {};
  }

  /// Works at most a quarter of the time, so that the storage serves the feed.
  void rest() {
    const auto worked = Clock::now() - last_rest;
    std::unique_lock lock(mutex);
    if (wake.wait_for(lock, 3 * worked, [&] { return over; })) throw Stopped();
    last_rest = Clock::now();
  }
};

EntryVerifier::EntryVerifier(std::shared_ptr<TokenCache> cache) : state_(std::make_unique<State>(std::move(cache))) {}

EntryVerifier::~EntryVerifier() {
  if (state_->is_forked()) {
    static_cast<void>(state_.release());  // The thread cannot be joined here, and may have held the mutex.
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

void EntryVerifier::use(const TokenFile& file) {
  auto& state = *state_;
  if (state.is_forked()) return;
  const std::lock_guard lock(state.mutex);
  if (!state.damage.empty()) throw SourceError(state.damage);
  if (!state.used.insert(&file).second) return;
  const std::filesystem::path path(file.path());
  const auto name = path.filename().string();
  const bool is_entry =
      path.parent_path() == state.cache->folder().dir() && name.ends_with(".bin") && !entry_of_file(name).empty();
  if (!is_entry) return;
  state.waiting.push_back((path.parent_path() / path.stem()).string());
  if (state.process == 0) state.start();
  state.wake.notify_all();
}

}  // namespace levada
