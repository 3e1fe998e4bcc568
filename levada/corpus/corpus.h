// Files of text as numbered training samples.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/corpus/corpus_options.h"
#include "levada/corpus/mix_file.h"
#include "levada/sources/source.h"

namespace levada {

/// A source's contribution to some samples.
struct SourceShare {
  std::string name;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  ///< tokens with a label; for packed samples estimated from the mean, rounded
  double share = 0;         ///< fraction of the unit that weights refer to: all samples, or all tokens with a label
};

/// Serves the documents of files as numbered samples. Text is tokenized once, into a TokenCache; an end-of-document
/// token follows each document, and the tokenizer renders chats. .bin/.idx files are read as they are.
///
/// Cut samples: documents are concatenated, and sequence i is tokens [i * S, i * S + S], of which the last is only a
/// label. Packed samples: whole documents, several or one per sample, as described in docs/design/corpus.md. In epoch
/// g / N, sample g is the sequence at g % N of that epoch's order; with several sources, a Mix decides which source it
/// comes from. Samples depend only on the files' content and the options, not on file names or the machine.
///
/// A batch is a dict of `tokens`, `labels`, `position_ids` (from 0 in each segment; a cut sequence is one segment), of
/// type int64 or CorpusOptions::ids, and float32 `loss_mask` (1 if there is a label; in chats, if the label is to be
/// learned), each [count, S]. Packed samples also have int32 `cu_seqlens` [count, M + 1] and `max_seqlen` [count]. On
/// request, a bool `attention_mask` [count, 1, S, S] is added, as defined by Megatron: true if a token (row) must not
/// attend to another one (column), that is, to later tokens and those of other segments. A packed row that gather()
/// makes from M documents is like such a batch of a single sample, which is as long as the documents with their
/// padding.
class Corpus final : public Source {
 public:
  /// Opens all files and tokenizes the texts that are not cached yet. `paths` names the files, as in expand_paths(), or
  /// a single mix file. Throws SourceError if a file cannot be read, and InvalidArgument for options that cannot work,
  /// such as a sequence longer than all the data.
  static Corpus open(std::vector<std::string> paths, CorpusOptions options = {});
  static Corpus open_mix(CorpusMix mix, CorpusOptions options = {});

  /// Returns a corpus of the same samples over `epochs` epochs; 0: endless. It shares files and indexes with this one,
  /// is cheap, and may be read concurrently with this one. Throws InvalidArgument if the samples are too many to count.
  Corpus of_epochs(std::int64_t epochs) const;

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus() override;

  /// Returns N, the number of samples per epoch: for a mix, the sum over its sources, each bounded by its cap.
  std::int64_t sequences() const;
  std::int64_t tokens() const;  ///< including end-of-document tokens
  std::int64_t documents() const;
  std::int64_t stored_documents() const;  ///< including those in other parts of the split
  std::int64_t files() const;
  /// Returns the number of files in folders that were skipped because they are not data, as in FoundFiles::left_out.
  const std::map<std::string, std::int64_t>& left_out() const;
  BadPlaces bad_lines() const;        ///< lines that were skipped
  const std::string& digest() const;  ///< digest of the files' content
  /// Returns the fraction of padding among the positions of all samples that read() returns.
  double padding_share() const;
  /// Returns what each source contributes to samples [first, end), in the order of the sources, without reading them.
  /// Ignores samples past the end.
  std::vector<SourceShare> shares(std::int64_t first, std::int64_t end) const;

  /// Returns the sample at which a run with this cursor resumes, and applies the changes of the mix's weights that the
  /// cursor records. Throws InvalidArgument, naming the differences, if the cursor is for another corpus or order or,
  /// without resume_weights, for other weights, or if it is past the last sample; CorruptMessage or Unsupported if it
  /// cannot be decoded. After an exception the samples are unchanged.
  std::int64_t resume(ByteView cursor);

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  void will_read(std::int64_t first, std::int64_t count) override;
  /// Computed from the indexes of the files.
  std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count) override;
  /// Requires that each sample occurs at most once. With Packing::documents, returns one packed row, otherwise the rows
  /// of read().
  bool has_random_access() const override { return true; }
  Tree gather(std::span<const std::int64_t> samples, Memory& memory) override;
  Bytes cursor(std::int64_t next) const override;
  std::int64_t segment_multiple() const override;
  bool has_single_sequences() const override;
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
