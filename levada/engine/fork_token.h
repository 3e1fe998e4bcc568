// Detects whether this process was forked after an object was created.
#pragma once

#include <sys/types.h>

namespace levada {

/// In a forked child, the parent's threads do not exist, and its locks may be held forever. An object that needs either
/// keeps a token and does nothing if the token is not valid. A check is one load from memory, without a system call.
class ForkToken {
 public:
  /// Throws EngineError if no page can be mapped.
  ForkToken();
  ~ForkToken();
  ForkToken(const ForkToken&) = delete;
  ForkToken& operator=(const ForkToken&) = delete;

  /// Returns false in a forked child of the process that created the token.
  bool valid() const { return *word_ != 0 && (cleared_by_fork_ || is_this_process()); }

 private:
  bool is_this_process() const;

  volatile pid_t* word_ = nullptr;  ///< on a page that the kernel clears in forked children
  bool cleared_by_fork_ = true;     ///< if false (before Linux 4.14), the word must equal this process's id
};

}  // namespace levada
