#include "levada/corpus/thread_pool.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/threads.h"

namespace levada {

struct ThreadPool::State {
  int size = 1;
  std::string purpose;
  ThreadGroup threads;
  pid_t process = 0;  ///< the process that runs the threads; 0 before they start

  std::mutex mutex;
  std::condition_variable begin, done;
  // Guarded by mutex.
  const std::function<void(std::size_t, std::size_t)>* act = nullptr;
  std::size_t next = 0, pieces = 0, failed_piece = 0;
  int invited = 0;  ///< threads that may still join this work
  int busy = 0;     ///< threads that are working
  std::exception_ptr failure;
  bool over = false;

  /// Runs pieces until none is left.
  void work(std::unique_lock<std::mutex>& lock, std::size_t member) {
    while (next < pieces && !failure) {
      const auto piece = next++;
      const auto& call = *act;
      lock.unlock();
      std::exception_ptr fault;
      try {
        call(piece, member);
      } catch (...) {
        fault = std::current_exception();
      }
      lock.lock();
      if (fault && (!failure || piece < failed_piece)) {
        failure = fault;
        failed_piece = piece;
      }
    }
  }

  void live(std::size_t member) {
    std::unique_lock lock(mutex);
    for (;;) {
      begin.wait(lock, [&] { return over || invited > 0; });
      if (over) return;
      --invited;
      ++busy;
      work(lock, member);
      if (--busy == 0) done.notify_one();
    }
  }

  bool is_forked() const { return process != 0 && process != ::getpid(); }

  void start() {
    process = ::getpid();
    for (int member = 1; member < size; ++member) {
      try {
        threads.start(purpose, [this, member] { live(static_cast<std::size_t>(member)); });
      } catch (const EngineError&) {
        if (threads.empty()) throw;
        return;
      }
    }
  }
};

ThreadPool::ThreadPool(int size, std::string purpose) : state_(std::make_unique<State>()) {
  state_->size = size;
  state_->purpose = std::move(purpose);
}

ThreadPool::~ThreadPool() {
  if (state_->is_forked()) {
    static_cast<void>(state_.release());  // The threads cannot be joined here.
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->begin.notify_all();
  state_->threads.join();
}

int ThreadPool::size() const {
  return state_->size;
}

void ThreadPool::run(std::size_t pieces, const std::function<void(std::size_t, std::size_t)>& act) {
  auto& state = *state_;
  if (state.size == 1 || pieces < 2 || state.is_forked()) {
    for (std::size_t piece = 0; piece < pieces; ++piece) act(piece, 0);
    return;
  }
  if (state.threads.empty()) state.start();
  std::unique_lock lock(state.mutex);
  state.act = &act;
  state.next = 0;
  state.pieces = pieces;
  state.failure = nullptr;
  state.invited = static_cast<int>(std::min(state.threads.size(), pieces - 1));
  for (int i = 0; i < state.invited; ++i) state.begin.notify_one();
  state.work(lock, 0);
  state.invited = 0;
  state.done.wait(lock, [&] { return state.busy == 0; });
  state.act = nullptr;
  if (state.failure) std::rethrow_exception(std::exchange(state.failure, nullptr));
}

}  // namespace levada
