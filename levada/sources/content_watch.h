// Detects whether an open file still has its original content.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "levada/sources/file.h"

namespace levada {

/// Detects changes to the content of an open file. Changes of permissions, owners, names and access time are allowed:
/// if only the file's change time (ctime) has moved, its sampled_digest() decides. The file must outlive the watch.
/// Thread-safe.
class ContentWatch {
 public:
  /// Throws SourceError if the file cannot be read.
  explicit ContentWatch(const File& file);

  std::uint64_t size() const { return before_.size; }
  /// Returns the sampled_digest() of the content. Throws SourceError.
  std::string sampled() const;
  /// Throws SourceError that names the change if the content is no longer the same.
  void expect_unchanged() const;

 private:
  const File& file_;
  const FileIdentity before_;
  const std::string sampled_;  ///< empty if the storage has no change time
  mutable std::atomic<std::int64_t> changed_ns_;
};

}  // namespace levada
