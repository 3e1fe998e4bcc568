// Replaces std::condition_variable::wait(), the only symbol that the wheel would need from the libstdc++ of GCC 12.
// With it, the wheel also works with the libstdc++ of GCC 11, as on RHEL 9. The linker substitutes it (--wrap).
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable& variable,
                                                                                 std::unique_lock<std::mutex>& lock);

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable& variable,
                                                                      std::unique_lock<std::mutex>& lock) {
  // Fails only if the thread does not hold the mutex.
  static_cast<void>(pthread_cond_wait(variable.native_handle(), lock.mutex()->native_handle()));
}
