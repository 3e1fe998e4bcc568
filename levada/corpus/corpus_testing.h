// Corpora of files in memory or in a temporary folder, for tests.
#pragma once

#include <fmt/format.h>

#include <algorithm>
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

/// Returns the folder of a token cache that only this process uses and that is removed at its end.
inline const std::string& scratch_cache() {
  static const ScratchDir dir;
  return dir.path();
}

/// Opens a corpus of all `files`, in the order of their names. The tokens of text are its bytes, unless `options` has a
/// tokenizer.
inline Corpus open_files(const Files& files, CorpusOptions options) {
  std::vector<std::string> paths;
  for (const auto& [path, content] : files) paths.push_back(path);
  if (options.cache_dir.empty()) options.cache_dir = scratch_cache();
  const auto has_text = std::ranges::any_of(paths, [](const auto& path) { return is_text(path); });
  if (has_text && !options.tokenizer) options.tokenizer = byte_tokenizer();
  options.open = [files](const std::string& path) { return std::make_unique<MemoryFile>(path, files.at(path)); };
  return Corpus::open(paths, std::move(options));
}

/// Returns the text of document `d`, whose letters depend on `d` and their position.
inline std::string document(int d, std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i)
    text += static_cast<char>('a' + (static_cast<std::size_t>(d) * 7 + i * i + i) % 26);
  return text;
}

/// Returns the content of a .jsonl file.
inline std::string lines_of(const std::vector<std::string>& texts) {
  std::string content;
  for (const auto& text : texts) content += fmt::format("{{\"id\": 7, \"text\": \"{}\", \"more\": null}}\n", text);
  return content;
}

/// Returns the elements of a field of a batch.
template <typename T>
std::vector<T> values(const Tree& batch, const char* field) {
  const auto span = batch.tensor(field).as<T>();
  return {span.begin(), span.end()};
}

}  // namespace levada
