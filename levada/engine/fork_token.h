// Whether a process is the one that made an object, or a child that fork() has made from it since.
#pragma once

#include <sys/types.h>

namespace levada {

/// In a forked child the threads of the parent are gone and its locks may be held for ever: objects that need them keep
/// a token, and do nothing where it is not valid. Asking takes one load from memory and no system call.
class ForkToken {
 public:
  /// Throws EngineError where no page can be mapped.
  ForkToken();
  ~ForkToken();
  ForkToken(const ForkToken&) = delete;
  ForkToken& operator=(const ForkToken&) = delete;

  /// Returns false in a forked child of the process that made the token.
  bool valid() const { return *word_ != 0 && (cleared_by_fork_ || is_this_process()); }

 private:
  bool is_this_process() const;

  volatile pid_t* word_ = nullptr;  ///< on a page that the kernel clears in forked children
  bool cleared_by_fork_ = true;     ///< if not, as before Linux 4.14: the word has to be this process's id
};

}  // namespace levada
