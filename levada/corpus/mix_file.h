// The sources that a corpus is mixed from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/sources/file.h"

namespace levada {

/// The files of one source of a corpus.
struct CorpusSource {
  std::string name = {};                                          ///< for messages; empty: its first path
  std::vector<std::string> paths;                                 ///< files, patterns or folders, as in expand_paths()
  double weight = 1;                                              ///< relative to the others' weights
  std::optional<std::int64_t> max_samples = {}, max_tokens = {};  ///< caps over the whole run
};

struct CorpusMix {
  enum class By : std::uint8_t { samples, tokens };  ///< the unit that weights refer to

  std::vector<CorpusSource> sources;
  By by = By::samples;
};

/// Returns whether `path` has the name of a mix file: FILE.json.
bool is_mix_file(const std::string& path);

/// Reads a mix file:
// clang-format off
///   {"sources": [{"path": "a/*.jsonl" or [...], "weight": 0.7, "name": ..., "max_samples": ..., "max_tokens": ...},
///                ...],
///    "by": "samples" or "tokens"}
// clang-format on
/// Relative paths start at the file's folder. Throws SourceError if the file cannot be read; InvalidArgument, naming
/// file and key, for any other form.
CorpusMix read_mix_file(const std::string& path,
                        const std::function<std::unique_ptr<File>(const std::string&)>& open = open_file);

/// Throws InvalidArgument for a mix without sources, for a source without paths or with a mix file among them, and for
/// weights and caps out of range.
void check(const CorpusMix& mix);

}  // namespace levada
