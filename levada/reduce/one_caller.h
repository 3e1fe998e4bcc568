// A guard for objects that one thread at a time may use.
#pragma once

#include <atomic>
#include <thread>

#include "levada/base/error.h"

namespace levada {

/// Knows which thread is inside a call of the object that has it.
class OneCaller {
 public:
  /// Held during a call; calls of the same thread nest. Throws InvalidArgument while another thread holds one.
  class Call {
   public:
    explicit Call(OneCaller& callers) : callers_(callers) {
      std::thread::id holder;
      const std::thread::id caller = std::this_thread::get_id();
      is_outermost_ = callers.thread_.compare_exchange_strong(holder, caller);
      if (is_outermost_ || holder == caller) return;
      throw InvalidArgument("a call of this bucketer is under way on another thread; let one thread at a time use it");
    }
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
  std::atomic<std::thread::id> thread_;
};

}  // namespace levada
