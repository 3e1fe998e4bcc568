// Tokenizes texts ahead of the runs that read them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "levada/corpus/corpus_options.h"

namespace levada {

struct FilledCache {
  std::string dir;                               ///< folder of the TokenCache; empty without texts
  std::int64_t texts = 0, made = 0;              ///< number of texts, and of those that this call tokenized
  std::uint64_t bytes_read = 0;                  ///< size of the text as stored
  BadPlaces bad_lines;                           ///< skipped lines of all texts
  std::map<std::string, std::int64_t> left_out;  ///< see FoundFiles
};

/// Tokenizes the texts that `paths` name, as Corpus::open() does, for runs with the same tokenizer and text options.
/// Any number of processes, on any number of hosts, may call it at the same time: they divide the work, and each
/// returns when all entries exist. Throws as TokenCache::tokenize() and sources_of() do.
FilledCache fill_cache(const std::vector<std::string>& paths, const CorpusOptions& options);

}  // namespace levada
