// Files of text as numbered training samples.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/source.h"
#include "levada/sources/token_file.h"

namespace levada {

struct CorpusOptions {
  std::int64_t sequence = 1024;               ///< tokens of a sample
  std::optional<std::uint64_t> shuffle_seed;  ///< empty: storage order in every epoch
  std::int64_t epochs = 1;                    ///< 0: without end
  std::string text_field = "text";            ///< of a .jsonl line
  bool skip_bad = false;                      ///< leave out .jsonl lines that cannot be used, and count them
  bool attention_mask = false;                ///< give each batch one
  bool cache = true;                          ///< keep indexes from run to run
  std::string cache_dir = {};                 ///< where; empty: XDG_CACHE_HOME/levada or ~/.cache/levada
  /// Hears of the index pass every few 100 KiB.
  std::function<void(const IndexProgress&)> progress = {};
  /// How files are opened: for tests, and for wrappers that throttle or try again.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
};

/// The documents of some files laid end to end, each closed by an end-of-document token, cut into sequences: sequence i
/// is tokens [i * S, i * S + S], of which the last is only a label. Sample g is, in epoch g / N, the sequence at g % N
/// of that epoch's order. What the files hold and the options say decides it; not the names of the files, nor the
/// machine.
///
/// A batch is a dict of int64 `tokens`, `labels`, `position_ids` (0 to S - 1, not interrupted by documents) and float32
/// `loss_mask` (ones), each [count, S], and, if asked for, bool `attention_mask` [count, 1, S, S], in Megatron's sense:
/// true where a token (row) may not see another (column), which here are those behind it.
class Corpus final : public Source {
 public:
  /// Opens and, where no index is kept, indexes all files, in the order given. Throws SourceError for what cannot be
  /// read, InvalidArgument for options that cannot work, such as a sequence longer than all the data.
  static Corpus open(std::vector<std::string> paths, CorpusOptions options = {});

  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;
  ~Corpus() override;

  std::int64_t sequences() const;  ///< samples of an epoch: N
  std::int64_t tokens() const;     ///< with those that end documents
  std::int64_t documents() const;
  std::int64_t bad_lines() const;     ///< left out
  const std::string& digest() const;  ///< of what the files hold

  /// The sample at which a run with this cursor goes on. Throws InvalidArgument, naming the differences, if it is of
  /// another corpus or order; CorruptMessage or Unsupported if it cannot be read.
  std::int64_t resume(ByteView cursor) const;

  std::optional<std::int64_t> size() const override;
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  Bytes cursor(std::int64_t next) const override;
  std::string activity() const override;
  ReadStats stats() const override;

 private:
  struct State;
  explicit Corpus(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace levada
