// Indexes kept from one run to the next.
#pragma once

#include <optional>
#include <string>

#include "levada/sources/file_index.h"

namespace levada {

/// XDG_CACHE_HOME/levada or ~/.cache/levada; empty where neither variable is set.
std::string default_cache_dir();

/// What an index holds for: a file as it was, read in one way. `kind` names the format and the version of its index.
struct IndexKey {
  std::string kind;
  std::string real_path;
  FileIdentity identity;
  std::string text_field;
  bool skip_bad = false;
  std::int64_t stride = 0, phase = 0;
};

/// The index kept in `dir` for `key`; empty if there is none, it is of another file or way to read it, or it is
/// damaged.
std::optional<FileIndex> load_index(const std::string& dir, const IndexKey& key);

/// Keeps an index: whole under its name or not at all. Says whether that could be done; a cache that cannot be written
/// is no error.
bool store_index(const std::string& dir, const IndexKey& key, const FileIndex& index);

}  // namespace levada
