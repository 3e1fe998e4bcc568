// How files become samples.
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

/// Throws InvalidArgument for a number below 0, which stands for no end.
void check_epochs(std::int64_t epochs);

struct CorpusOptions {
  std::int64_t sequence = 1024;               ///< tokens of a sample
  std::optional<std::uint64_t> shuffle_seed;  ///< empty: storage order in every epoch
  std::int64_t epochs = 1;                    ///< times through the data; 0: without end
  bool each_once = false;  ///< each sample of each source once, whatever a mix's weights: to evaluate
  Packing packing = Packing::cut;
  std::int64_t pad_to = 1;      ///< packed documents are rounded up to multiples of it; divides sequence
  bool attention_mask = false;  ///< adds `attention_mask` to each batch
  /// As in Megatron-LM, for cut documents: positions restart at 0 after each end-of-document token, the attention mask
  /// keeps documents apart, and the loss mask is 0 at that token.
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  DType ids = dtypes::int64;       ///< of tokens, labels and position_ids: int64 or int32
  std::vector<double> split = {};  ///< proportions that the documents are divided in, as part_of_split() takes them
  std::string part = "train";      ///< of the split
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< makes tokens of text; null refuses text
  std::string end_of_document = {};      ///< the token that ends each, as choose_end_of_document() takes it
  std::string text_field = {};           ///< of a .jsonl line, as TextOptions has it
  bool skip_bad = false;                 ///< leave out .jsonl lines that cannot be used, and count them
  double max_bad = 1;                    ///< the largest share of a text's lines that may be left out
  std::vector<TextFormat> formats = {};  ///< of text, besides .jsonl and .txt
  bool resume_weights = false;  ///< resume() accepts a cursor of other weights; from there on the own ones hold
  std::string cache_dir = {};   ///< of the TokenCache; empty: XDG_CACHE_HOME/levada or ~/.cache/levada
  /// That it may have; empty: half of its file system. Also of what is kept of remote token files, by each Corpus:
  /// empty: 16 GiB. That is at most a quarter of what is free.
  std::optional<std::uint64_t> cache_bytes;
  /// Receives the progress of reading and tokenizing before the first sample. Called by one thread at a time.
  std::function<void(const PrepareProgress&)> progress = {};
  IoOptions io = {};  ///< how patiently, and with how many threads, files are read
  /// Opens files below `io`, except the cache's own: for tests and for custom storage.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  RemoteFiles remote = {};  ///< files with URLs, also beneath `io`; parts of token files are kept in cache_dir, unnamed

  /// Whether batches depend on where documents end.
  bool minds_ends() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }
  /// Throws InvalidArgument for options that cannot work, whatever the data.
  void check() const;
};

}  // namespace levada
