#include <algorithm>

#include "levada/corpus/sample_set.h"

namespace levada {
namespace {

class CutSamples final : public SampleSet {
 public:
  CutSamples(const SourceFiles& files, std::int64_t sequence) : files_(files), sequence_(sequence) {}

  std::int64_t size() const override { return (files_.tokens() - 1) / sequence_; }
  std::int64_t positions() const override { return size() * sequence_; }

  SampleSize size_of(std::int64_t) const override { return {.tokens = sequence_, .squares = sequence_ * sequence_}; }

  void fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const override {
    std::ranges::fill(rows.loss_mask, 1.0F);
    TokenWriter to(rows.tokens, rows.labels, rows.loss_mask);
    for_each_file(first, static_cast<std::int64_t>(rows.tokens.size()),
                  [&](const TokenFile& file, auto begin, auto end) {
                    reader.touch(file);
                    file.read(begin, end, to, reader.state);
                  });
  }
  void will_fill(std::int64_t number) const override {
    for_each_file(number, sequence_, [](const TokenFile& file, auto begin, auto end) { file.will_read(begin, end); });
  }

 private:
  /// Calls act(file, begin, end) for each file's part of the `positions` tokens from sample `first` on, and of the
  /// token after them.
  template <typename Act>
  void for_each_file(std::int64_t first, std::int64_t positions, const Act& act) const {
    auto position = first * sequence_;
    const auto end = position + positions + 1;
    while (position < end) {
      const auto [index, at] = files_.token(position);
      const auto& file = files_[index];
      const auto stop = std::min(end - position + at, file.contents().tokens);
      act(file, at, stop);
      position += stop - at;
    }
  }

  const SourceFiles& files_;
  std::int64_t sequence_;
};

}  // namespace

std::unique_ptr<SampleSet> make_cut_samples(const SourceFiles& files, std::int64_t sequence) {
  return std::make_unique<CutSamples>(files, sequence);
}

}  // namespace levada
