// std::condition_variable::wait(), which is all that the wheel would take from the libstdc++ of GCC 12: without it, the
// wheel also works with the one of GCC 11, as on RHEL 9. The linker puts this in its place (--wrap).
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable& variable,
                                                                                 std::unique_lock<std::mutex>& lock);

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable& variable,
                                                                      std::unique_lock<std::mutex>& lock) {
  // It fails only for a mutex that the thread does not hold.
  static_cast<void>(pthread_cond_wait(variable.native_handle(), lock.mutex()->native_handle()));
}
