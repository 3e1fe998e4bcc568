// Files addressed by URLs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/file.h"

namespace levada {

/// Lets a program provide files by URL, such as s3://bucket/corpus.bin. Both functions may be called on any thread, and
/// throw StorageFault. Without them, URLs are rejected.
struct RemoteFiles {
  /// Opens a file. Reads throw SourceError once it is no longer the file that was opened.
  std::function<std::unique_ptr<File>(const std::string& url)> open;
  /// Returns the matches of a pattern (*, ?, [...]), folders with a trailing '/'. For any other URL, returns all files
  /// below that folder, or none if it does not exist.
  std::function<std::vector<std::string>(const std::string& url)> list;
};

}  // namespace levada
