// A file in memory whose reads can fail: for tests and fuzzers.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "levada/sources/file.h"

namespace levada {

/// Its members may be changed while it is read, as another program might change a file. One thread at a time.
class MemoryFile final : public File {
 public:
  MemoryFile(std::string path, std::string bytes) : content(std::move(bytes)), path_(std::move(path)) {
    now.size = content.size();
  }

  const std::string& path() const override { return path_; }
  FileIdentity identity() const override { return now; }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    if (before_read) before_read(offset);
    if (offset >= content.size()) return 0;
    const auto count = std::min({into.size(), content.size() - static_cast<std::size_t>(offset), max_at_once});
    std::copy_n(content.data() + offset, count, into.data());
    return count;
  }

  std::string content;
  FileIdentity now;
  std::size_t max_at_once = SIZE_MAX;  ///< limit on the length of a read
  std::function<void(std::uint64_t)> before_read;

 private:
  std::string path_;
};

/// Opens these files, given as content by path, and no others.
inline std::function<std::unique_ptr<File>(const std::string&)> open_from(std::map<std::string, std::string> contents) {
  return [contents = std::move(contents)](const std::string& path) {
    return std::make_unique<MemoryFile>(path, contents.at(path));
  };
}

}  // namespace levada
