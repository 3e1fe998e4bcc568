#include "levada/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "levada/base/error.h"
#include "levada/base/forked_testing.h"

namespace levada {
namespace {

// A sanitizer aborts a process that cannot allocate.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Leaves no address space for another thread's stack, but some heap for throwing an error.
void refuse_threads() {
  char* volatile spare = new char[std::size_t{100} << 10];  // volatile: otherwise the compiler removes both lines
  delete[] spare;
  const rlimit limit{1 << 20, 1 << 20};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST(Threads, ThatCannotStartNameTheirPurposeInTheError) {
  EXPECT_EQ(
      in_forked_process([] {
        refuse_threads();
        try {
          for (int i = 0; i < 1000; ++i) start_thread("rank 3", [] { ::pause(); }).detach();
        } catch (const EngineError& error) {
          const std::string text = error.what();
          return text.starts_with("cannot start a thread for rank 3: ") && text.find("ulimit -v") != text.npos ? 0 : 1;
        }
        return 2;
      }),
      0);
}

/// Sets `stop` on destruction.
struct Stop {
  std::atomic<bool>& stop;
  ~Stop() {
    stop = true;
    stop.notify_all();
  }
};

TEST(ThreadGroup, JoinsStartedThreadsIfTheNextCannotStart) {
  EXPECT_EQ(in_forked_process([] {
              std::atomic<bool> stop{false};
              std::atomic<int> done{0};
              try {
                ThreadGroup threads;
                // No thread ends earlier: the next one would reuse its stack.
                const Stop at_the_end{stop};
                threads.start("the first", [&] {
                  stop.wait(false);
                  ++done;
                });
                refuse_threads();
                std::size_t started = 1;
                try {
                  for (; started < 1000; ++started) threads.start("the next", [&] { stop.wait(false); });
                } catch (const EngineError&) {
                  if (threads.size() != started) return 3;
                  throw;
                }
              } catch (const EngineError&) {
                return done == 1 ? 0 : 1;
              }
              return 2;
            }),
            0);
}
#endif

}  // namespace
}  // namespace levada
