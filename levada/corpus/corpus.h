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
  BadPlaces bad_lines() const;        ///< left out
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
  std::int64_t segment_multiple() const override;
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
