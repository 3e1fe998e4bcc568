// Detects whether a process is a child that fork() has made since an object was created.
#pragma once

#include <sys/types.h>

namespace levada {

/// In a forked child the parent's threads are gone and its locks may be held forever. Objects that need them keep a
/// token and do nothing if it is not valid. A check costs one load from memory and no system call.
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
