// Corpora of files that lie in memory: for tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levada/corpus/corpus.h"
#include "levada/sources/memory_file_testing.h"

namespace levada {

/// Contents by path.
using Files = std::map<std::string, std::string>;

/// A corpus of all `files`, in the order of their names.
inline Corpus open_files(const Files& files, CorpusOptions options) {
  std::vector<std::string> paths;
  for (const auto& [path, content] : files) paths.push_back(path);
  options.cache = false;
  options.open = [files](const std::string& path) { return std::make_unique<MemoryFile>(path, files.at(path)); };
  return Corpus::open(paths, std::move(options));
}

}  // namespace levada
