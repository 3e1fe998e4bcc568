// Threads that read side by side.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace levada {

/// A few threads that share out numbered pieces of work, the caller's among them. Threads beyond the caller's start
/// with the first work that takes them; where the system allows only some of them, those do the work. One thread at a
/// time may call.
class ThreadPool {
 public:
  /// `size` at least 1: the caller and size - 1 threads. `purpose`: what they are for, such as "opening files", for the
  /// error where the system refuses them.
  ThreadPool(int size, std::string purpose);
  ~ThreadPool();

  int size() const;
  /// Calls act(piece, member) once for each piece in [0, pieces), with member in [0, size()) naming the thread. Waits
  /// for all; then throws what the first of the pieces that failed threw. Behind a failure no more pieces begin. Throws
  /// EngineError where the system allows not even one more thread.
  void run(std::size_t pieces, const std::function<void(std::size_t, std::size_t)>& act);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levada
