// Verifies entries of a token cache completely while their tokens are fed.
#pragma once

#include <sys/types.h>

#include <memory>

#include "levada/sources/token_file.h"
#include "levada/tokens/token_cache.h"

namespace levada {

/// Opening an entry of a token cache reads only a few blocks of it, and misses damage between them. This class reads
/// each entry in use once, from start to end, on one low-priority thread, and compares the checksum. A mark in the
/// cache's folder records that an entry is good, so that later runs do not read it again. The thread sleeps most of the
/// time. The destructor stops it without waiting for unfinished entries. Thread-safe; in a process forked after the
/// first use(), calls do nothing.
class EntryVerifier {
 public:
  explicit EntryVerifier(std::shared_ptr<TokenCache> cache);
  ~EntryVerifier();
  EntryVerifier(const EntryVerifier&) = delete;
  EntryVerifier& operator=(const EntryVerifier&) = delete;

  /// Queues the entry that `file` belongs to, at its first use; ignores files outside the cache. Throws SourceError,
  /// with the entry's name and the remedy, if any queued entry has turned out to be damaged. If the system refuses the
  /// thread, entries stay unverified.
  void use(const TokenFile& file);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levada
