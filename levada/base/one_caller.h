// Guards objects that only one thread at a time may use.
#pragma once

#include <atomic>
#include <string_view>
#include <thread>

namespace levada {

/// Tracks which thread is inside a call on the guarded object. Thread-safe.
class OneCaller {
 public:
  bool is_free() const { return thread_.load() == std::thread::id(); }
  /// Returns whether the calling thread is inside.
  bool is_mine() const { return thread_.load() == std::this_thread::get_id(); }

  /// Whether a thread that is inside may make another call, for example from a callback or a signal handler.
  enum class Nested : bool { refused, allowed };

  /// Marks the calling thread as inside during a call.
  class Call {
   public:
    /// Throws InvalidArgument if another thread is inside, or if this thread is and nested calls are refused. `what`
    /// names the object: "this feed".
    Call(OneCaller& callers, std::string_view what, Nested nested = Nested::refused);
    ~Call() {
      if (is_outermost_) callers_.thread_ = std::thread::id();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OneCaller& callers_;
    bool is_outermost_ = false;
  };

 private:
  std::atomic<std::thread::id> thread_{};
};

}  // namespace levada
