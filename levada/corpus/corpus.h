// Files of text as numbered training samples.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/corpus/mix_file.h"
#include "levada/corpus/packing.h"
#include "levada/sources/file.h"
#include "levada/sources/io_options.h"
#include "levada/sources/remote_files.h"
#include "levada/sources/source.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

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
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();  ///< of text
  std::string end_of_document = {};      ///< the token that ends each, as choose_end_of_document() takes it
  std::string text_field = {};           ///< of a .jsonl line, as TextOptions has it
  bool skip_bad = false;                 ///< leave out .jsonl lines that cannot be used, and count them
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
};

/// What a source contributed to some samples.
struct SourceShare {
  std::string name;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  ///< that have a label; of packed samples by their mean, rounded
  double share = 0;         ///< of what weights are shares of: all samples, or all such tokens
};

/// The documents of some files as samples. Text becomes tokens once, in a TokenCache; an end-of-document token follows
/// each document, and the tokenizer renders chats. .bin/.idx are read as they are. Cut: documents are laid end to
/// end, and sequence i is tokens
/// [i * S, i * S + S], of which the last is only a label. Packed: whole documents, side by side or each a sample, as
/// docs/design/corpus.md describes. Sample g is, in epoch g / N, the sequence at g % N of that epoch's order; with
/// several sources, a Mix decides whose sample it is. Samples depend on the files' content and the options alone, not
/// on file names or on the machine.
///
/// A batch is a dict of `tokens`, `labels`, `position_ids` (from 0 in each segment; a cut sequence is one), int64 or
/// CorpusOptions::ids, and float32 `loss_mask` (1 where there is a label, that of chats where it is to be learned),
/// each [count, S]; of packed samples also int32 `cu_seqlens` [count, M + 1] and `max_seqlen` [count]; and, if asked
/// for, bool `attention_mask` [count, 1, S, S], in Megatron's sense: true where a token (row) may not see another
/// (column), which here are those behind it and in other segments. A packed row that gather() makes of M documents is
/// like such a batch of one sample, as long as the documents with their padding.
class Corpus final : public Source {
 public:
  /// Opens all files and tokenizes the texts that are in no cache yet: those that `paths` name, as expand_paths() takes
  /// them, or a single mix file. Throws SourceError for what cannot be read, InvalidArgument for
  /// options that cannot work, such as a sequence longer than all the data.
  static Corpus open(std::vector<std::string> paths, CorpusOptions options = {});
  static Corpus open_mix(CorpusMix mix, CorpusOptions options = {});

  /// Returns a corpus of the same samples over `epochs` epochs; 0: without end. Shares files and indexes with this one,
  /// costs next to nothing, and may be read while this one is. Throws InvalidArgument for more samples than can be
  /// counted.
  Corpus of_epochs(std::int64_t epochs) const;

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus() override;

  /// Returns N, the number of samples of an epoch: for a mix, the sum over its sources, each bounded by its cap.
  std::int64_t sequences() const;
  std::int64_t tokens() const;  ///< with those that end documents
  std::int64_t documents() const;
  std::int64_t stored_documents() const;  ///< of all parts of a split
  std::int64_t files() const;
  /// Returns how many files of the folders were no data, as FoundFiles::left_out.
  const std::map<std::string, std::int64_t>& left_out() const;
  std::int64_t bad_lines() const;     ///< left out
  const std::string& digest() const;  ///< of what the files hold
  /// Returns the share of padding among the positions of all samples, as read() returns them.
  double padding_share() const;
  /// Returns what each source contributes to samples [first, end), in the order of the sources. Computed without
  /// reading. Ignores samples behind the last.
  std::vector<SourceShare> shares(std::int64_t first, std::int64_t end) const;

  /// Returns the sample at which a run with this cursor resumes, and applies the changes of a mix's weights that the
  /// cursor records. Throws InvalidArgument, naming the differences, for a cursor of another corpus or order, of other
  /// weights without resume_weights, and for one behind the last sample; CorruptMessage or Unsupported for one that
  /// cannot be decoded. After an exception the samples are unchanged.
  std::int64_t resume(ByteView cursor);

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  void will_read(std::int64_t first, std::int64_t count) override;
  /// Known from the indexes of the files.
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override;
  /// Each sample at most once. Packing::documents: one packed row. Otherwise the rows that read() returns.
  bool has_random_access() const override { return true; }
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override;
  Bytes cursor(std::int64_t next) const override;
  std::vector<std::pair<std::string, std::string>> identity() const override;
  std::string difference_remedy() const override;
  std::string activity() const override;
  ReadStats stats() const override;

 private:
  struct Data;
  struct State;
  explicit Corpus(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace levada
