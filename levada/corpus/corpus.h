// Files of text as numbered training samples.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/corpus/mix_file.h"
#include "levada/sources/file.h"
#include "levada/sources/io_options.h"
#include "levada/sources/source.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// How documents become samples: laid end to end and cut, or whole and side by side, best fit decreasing.
enum class Packing : std::uint8_t { cut, best_fit };

/// "cut" or "best-fit". Throws InvalidArgument for another word.
Packing parse_packing(std::string_view word);

struct CorpusOptions {
  std::int64_t sequence = 1024;               ///< tokens of a sample
  std::optional<std::uint64_t> shuffle_seed;  ///< empty: storage order in every epoch
  std::int64_t epochs = 1;                    ///< times through the data; 0: without end
  Packing packing = Packing::cut;
  std::int64_t pad_to = 1;      ///< packed documents are rounded up to multiples of it; divides sequence
  bool attention_mask = false;  ///< give each batch one
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();  ///< of text
  std::string end_of_document = {};          ///< the token that ends each, as choose_end_of_document() takes it
  std::string text_field = "text";           ///< of a .jsonl line
  bool skip_bad = false;                     ///< leave out .jsonl lines that cannot be used, and count them
  std::vector<TextFormat> formats = {};      ///< of text, besides .jsonl and .txt
  std::string cache_dir = {};                ///< of the TokenCache; empty: XDG_CACHE_HOME/levada or ~/.cache/levada
  std::optional<std::uint64_t> cache_bytes;  ///< that it may have; empty: half of its file system
  /// Told of what is read and tokenized before the first sample, by one thread at a time.
  std::function<void(const PrepareProgress&)> progress = {};
  IoOptions io = {};  ///< how patiently, and with how many threads, files are read
  /// How files are opened beneath `io`, but for those of the cache: for tests, and for storage of one's own.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
};

/// What a source gave to some samples.
struct SourceShare {
  std::string name;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  ///< that have a label; of packed samples by their mean, rounded
  double share = 0;         ///< of what weights are shares of: all samples, or all such tokens
};

/// The documents of some files as samples. Text becomes tokens once, in a TokenCache, each document closed by a token
/// that says so; .bin/.idx are read as they are. Cut: documents are laid end to end, and sequence i is tokens [i * S, i
/// * S + S], of which the last is only a label. Packed: whole documents side by side, as docs/design/corpus.md says.
/// Sample g is, in epoch g / N, the sequence at g % N of that epoch's order; with several sources, a Mix says whose
/// sample it is. What the files hold and the options say decides it; not the names of the files, nor the machine.
///
/// A batch is a dict of int64 `tokens`, `labels`, `position_ids` (from 0 in each segment; a cut sequence is one) and
/// float32 `loss_mask` (1 where there is a label), each [count, S]; of packed samples also int32 `cu_seqlens`
/// [count, M + 1] and `max_seqlen` [count]; and, if asked for, bool `attention_mask` [count, 1, S, S], in Megatron's
/// sense: true where a token (row) may not see another (column), which here are those behind it and in other segments.
class Corpus final : public Source {
 public:
  /// Opens all files and tokenizes the texts that are in no cache yet: those that `paths` name, as expand_paths() takes
  /// them, or the one mix file that stands there alone. Throws SourceError for what cannot be read, InvalidArgument for
  /// options that cannot work, such as a sequence longer than all the data.
  static Corpus open(std::vector<std::string> paths, CorpusOptions options = {});
  static Corpus open_mix(CorpusMix mix, CorpusOptions options = {});

  /// The same samples, gone through so many times; 0: without end. Shares files and indexes with this one, costs next
  /// to nothing, and may be read while this one is. Throws InvalidArgument for more samples than can be counted.
  Corpus of_epochs(std::int64_t epochs) const;

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus() override;

  /// Samples of an epoch: N. Of a mix, as many as its sources hold together, none of them more than its cap.
  std::int64_t sequences() const;
  std::int64_t tokens() const;  ///< with those that end documents
  std::int64_t documents() const;
  std::int64_t bad_lines() const;     ///< left out
  const std::string& digest() const;  ///< of what the files hold
  /// Of the positions of all samples, those that are padding.
  double padding_share() const;
  /// What each source gives to samples [first, end), worked out from the numbers; in the order of the sources.
  /// Samples behind the last count for none.
  std::vector<SourceShare> shares(std::int64_t first, std::int64_t end) const;

  /// The sample at which a run with this cursor goes on. Throws InvalidArgument, naming the differences, if it is of
  /// another corpus or order, and if it stands behind the last sample; CorruptMessage or Unsupported if it cannot be
  /// read.
  std::int64_t resume(ByteView cursor) const;

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  Bytes cursor(std::int64_t next) const override;
  std::vector<std::pair<std::string, std::string>> identity() const override;
  std::string activity() const override;
  ReadStats stats() const override;

 private:
  struct Data;
  struct State;
  explicit Corpus(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace levada
