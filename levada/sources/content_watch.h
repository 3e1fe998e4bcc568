// Whether an open file still has the content that it had.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "levada/sources/file.h"

namespace levada {

/// Notices that the content of an open file changes. Permissions, owners, names and the time of access may change:
/// where only the file's time of change has moved, its sampled_digest() decides. The file must outlive the watch. Any
/// thread may call.
class ContentWatch {
 public:
  /// Throws SourceError if the file cannot be read.
  explicit ContentWatch(const File& file);

  std::uint64_t size() const { return before_.size; }
  /// Returns the sampled_digest() of the content. Throws SourceError.
  std::string sampled() const;
  /// Throws SourceError, naming the change, if the content is no longer the same.
  void expect_unchanged() const;

 private:
  const File& file_;
  const FileIdentity before_;
  const std::string sampled_;  ///< empty where the storage knows no time of change
  mutable std::atomic<std::int64_t> changed_ns_;
};

}  // namespace levada
