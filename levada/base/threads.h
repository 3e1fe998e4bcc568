// Starts threads, and explains the error if the system refuses one.
#pragma once

#include <cstddef>
#include <list>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace levada {

/// Throws EngineError, which says that the system refused a thread for `what`.
[[noreturn]] void throw_no_thread(std::string_view what, std::error_code refusal);

/// Starts a thread for `what`, such as "reading ahead". Throws EngineError that says how to raise the limit if the
/// system refuses.
template <typename Body>
std::thread start_thread(std::string_view what, Body&& body) try {
  return std::thread(std::forward<Body>(body));
} catch (const std::system_error& refusal) {
  throw_no_thread(what, refusal.code());
} catch (const std::bad_alloc&) {
  throw_no_thread(what, std::make_error_code(std::errc::not_enough_memory));
}

/// Threads that are joined when the group is destroyed, so that none outlives the data that it works on.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  ~ThreadGroup() { join(); }

  /// Starts a thread as start_thread() does.
  template <typename Body>
  void start(std::string_view what, Body&& body) try {
    std::list<std::thread> started(1);  // Allocate first, so that a running thread is never lost.
    started.back() = start_thread(what, std::forward<Body>(body));
    threads_.splice(threads_.end(), started);
  } catch (const std::bad_alloc&) {
    throw_no_thread(what, std::make_error_code(std::errc::not_enough_memory));
  }
  bool empty() const { return threads_.empty(); }
  std::size_t size() const { return threads_.size(); }
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    threads_.clear();
  }

 private:
  std::list<std::thread> threads_;
};

}  // namespace levada
