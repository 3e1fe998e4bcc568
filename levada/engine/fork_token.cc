#include "levada/engine/fork_token.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "levada/base/error.h"

namespace levada {
namespace {

constexpr std::size_t token_bytes = 4096;

}  // namespace

ForkToken::ForkToken() {
  void* at = ::mmap(nullptr, token_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    throw EngineError(fmt::format("cannot map a page of memory (mmap: {}); allow more address space (ulimit -v)",
                                  std::strerror(errno)));
  }
  cleared_by_fork_ = ::madvise(at, token_bytes, MADV_WIPEONFORK) == 0;
  word_ = static_cast<volatile pid_t*>(at);
  *word_ = ::getpid();
}

ForkToken::~ForkToken() {
  ::munmap(const_cast<pid_t*>(word_), token_bytes);
}

bool ForkToken::is_this_process() const {
  return *word_ == ::getpid();
}

}  // namespace levada
