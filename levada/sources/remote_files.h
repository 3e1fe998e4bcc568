// Files that have URLs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/file.h"

namespace levada {

/// How a program reads files by URL, such as s3://bucket/corpus.bin. Both functions may be called by any thread, and
/// throw StorageFault. Without them, URLs are rejected.
struct RemoteFiles {
  /// Opens a file. Its reads throw SourceError once it is no longer the file that was opened.
  std::function<std::unique_ptr<File>(const std::string& url)> open;
  /// Returns what a pattern (*, ?, [...]) matches, folders with a '/' at their end. For any other URL, returns all
  /// files below that folder: none if there is no such folder.
  std::function<std::vector<std::string>(const std::string& url)> list;
};

}  // namespace levada
