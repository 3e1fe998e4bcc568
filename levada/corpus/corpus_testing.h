// Corpora of files that lie in memory or in a folder of their own: for tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levada/corpus/corpus.h"
#include "levada/sources/memory_file_testing.h"
#include "levada/sources/scratch_dir_testing.h"

namespace levada {

/// Contents by path.
using Files = std::map<std::string, std::string>;

/// A token cache of this process alone, removed at its end.
inline const std::string& scratch_cache() {
  static const ScratchDir dir;
  return dir.path();
}

/// A corpus of all `files`, in the order of their names.
inline Corpus open_files(const Files& files, CorpusOptions options) {
  std::vector<std::string> paths;
  for (const auto& [path, content] : files) paths.push_back(path);
  if (options.cache_dir.empty()) options.cache_dir = scratch_cache();
  options.open = [files](const std::string& path) { return std::make_unique<MemoryFile>(path, files.at(path)); };
  return Corpus::open(paths, std::move(options));
}

}  // namespace levada
