#include "levada/base/one_caller.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada {

OneCaller::Call::Call(OneCaller& callers, std::string_view what, Nested nested) : callers_(callers) {
  std::thread::id holder;
  const std::thread::id caller = std::this_thread::get_id();
  is_outermost_ = callers.thread_.compare_exchange_strong(holder, caller);
  if (is_outermost_ || (holder == caller && nested == Nested::allowed)) return;
  throw InvalidArgument(holder == caller
                            ? fmt::format("a call of {} on this thread is under way, interrupted by a signal", what)
                            : fmt::format("a call of {} is under way on another thread; let one thread at a "
                                          "time use it",
                                          what));
}

}  // namespace levada
