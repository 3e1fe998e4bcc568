// The options by which files become samples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/corpus/packing.h"
#include "levada/sources/file.h"
#include "levada/sources/io_options.h"
#include "levada/sources/remote_files.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// Throws InvalidArgument for a negative number; 0 means endless.
void check_epochs(std::int64_t epochs);

struct CorpusOptions {
  std::int64_t sequence = 1024;               ///< tokens per sample
  std::optional<std::uint64_t> shuffle_seed;  ///< empty: storage order in every epoch
  std::int64_t epochs = 1;                    ///< passes over the data; 0: endless
  bool each_once = false;  ///< each sample of each source once, ignoring a mix's weights; for evaluation
  Packing packing = Packing::cut;
  std::int64_t pad_to = 1;      ///< packed documents are padded to multiples of it; must divide sequence
  bool attention_mask = false;  ///< whether to add `attention_mask` to each batch
  /// As in Megatron-LM, for cut documents: positions restart at 0 after each end-of-document token, the attention mask
  /// separates documents, and the loss mask is 0 at that token.
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  DType ids = dtypes::int64;       ///< type of tokens, labels and position_ids: int64 or int32
  std::vector<double> split = {};  ///< proportions of the split of the documents, as in part_of_split()
  std::string part = "train";      ///< part of the split
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< tokenizes text; null: text is rejected
  std::string end_of_document = {};      ///< token that ends each document, as in choose_end_of_document()
  std::string text_field = {};           ///< field of a .jsonl line, as in TextOptions
  bool skip_bad = false;                 ///< whether to skip and count unusable .jsonl lines and empty texts
  double max_bad = 1;                    ///< maximum fraction of a text's lines that may be skipped
  std::vector<TextFormat> formats = {};  ///< formats of text in addition to .jsonl and .txt
  /// Whether resume() accepts a cursor with other weights; this corpus's weights apply from there on.
  bool resume_weights = false;
  std::string cache_dir = {};  ///< folder of the TokenCache; empty: XDG_CACHE_HOME/levada or ~/.cache/levada
  /// Maximum size of the TokenCache; empty: half of its file system. Also the maximum size of each Corpus's cache of
  /// remote token files; empty: 16 GiB; never more than a quarter of the free space.
  std::optional<std::uint64_t> cache_bytes;
  /// Receives the progress of reading and tokenizing before the first sample. Called by one thread at a time.
  std::function<void(const PrepareProgress&)> progress = {};
  IoOptions io = {};  ///< retries, rate limit and number of threads for reading files
  /// Opens files below `io`, except the cache's files. For tests and for custom storage.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  RemoteFiles remote = {};  ///< files with URLs, below `io`; caches parts of token files unnamed in cache_dir

  /// Returns whether batches depend on the positions at which documents end.
  bool minds_ends() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }
  /// Throws InvalidArgument for options that cannot work with any data.
  void check() const;
};

}  // namespace levada
