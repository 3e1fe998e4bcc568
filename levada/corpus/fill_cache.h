// Tokenizing ahead of the runs that read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "levada/corpus/corpus_options.h"

namespace levada {

struct FilledCache {
  std::string dir;                               ///< of the TokenCache; empty without texts
  std::int64_t texts = 0, made = 0;              ///< all, and those that were tokenized here
  std::uint64_t bytes_read = 0;                  ///< of text, as it is stored
  BadPlaces bad_lines;                           ///< left out, of all texts
  std::map<std::string, std::int64_t> left_out;  ///< as FoundFiles has it
};

/// Tokenizes the texts that `paths` name, as Corpus::open() does, for runs with the same tokenizer and options of text.
/// Any number of processes, on any number of hosts, may do so at once: each makes entries that no other one makes, and
/// returns when all are there. Throws as TokenCache::tokenize() and sources_of() do.
FilledCache fill_cache(const std::vector<std::string>& paths, const CorpusOptions& options);

}  // namespace levada
