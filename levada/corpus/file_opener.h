// Opens the files of a corpus, each as tokens.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "levada/corpus/corpus.h"
#include "levada/corpus/paths.h"
#include "levada/corpus/source_files.h"
#include "levada/sources/storage.h"
#include "levada/tokens/token_cache.h"

namespace levada {

/// Returns the sources that `paths` name: those of a single mix file, or else one source of all files. Throws
/// InvalidArgument if there is no path, or a mix file among other paths; and as read_mix_file() does.
CorpusMix sources_of(std::vector<std::string> paths, const CorpusOptions& options);

/// Tokenizes text files and opens token files. One thread at a time.
class FileOpener {
 public:
  /// Borrows the options. `memory` counts the memory for the files' tables while they are opened concurrently. Throws
  /// InvalidArgument for options out of range.
  explicit FileOpener(const CorpusOptions& options,
                      std::shared_ptr<MemoryClaims> memory = std::make_shared<MemoryClaims>());

  /// Returns expand_paths() of `names`.
  FoundFiles expand(const std::vector<std::string>& names);
  /// Opens files, in their order; they may outlive this object. Throws SourceError for files that cannot be read or
  /// tokenized and for texts with too many bad lines, and InvalidArgument for a file of unknown kind.
  std::vector<OpenedFile> open(const std::vector<std::string>& paths);

  /// Throws SourceError if a file that is not a text is missing, and InvalidArgument if its kind is unknown.
  void expect_tokens(const std::string& path) const;

  /// Returns the tokens of texts, in their order, as TokenCache::tokenize() does.
  std::vector<CachedTokens> tokenize(const std::vector<std::string>& texts);

  /// Returns the cache, which keeps the tokens of texts as long as it exists; null if none of the files was a text.
  std::shared_ptr<TokenCache> cache() const { return cache_; }
  /// Returns the end-of-document token of the texts; unspecified if there are none.
  std::int64_t end_of_document() const { return end_of_document_; }

 private:
  bool is_text_here(const std::string& path) const { return is_text(path, options_.formats); }
  OpenedFile open_tokens(const std::string& path) const;
  OpenedFile open_cached(const CachedTokens& tokens) const;
  /// Replaces a damaged entry of the cache.
  OpenedFile open_or_repair(const std::string& path, const CachedTokens& tokens);
  TokenFileOptions options_for(const Storage& storage) const;

  const CorpusOptions& options_;
  std::shared_ptr<MemoryClaims> memory_;
  std::shared_ptr<const KnownIndexes> known_indexes_;
  Storage token_storage_, text_storage_, cache_storage_;
  std::shared_ptr<TokenCache> cache_;
  std::int64_t end_of_document_ = 0;
  mutable std::mutex mutex_;  ///< held while progress is reported or an entry is replaced
};

}  // namespace levada
