#include <algorithm>

#include "levada/corpus/sample_set.h"

namespace levada {
namespace {

class CutSamples final : public SampleSet {
 public:
  CutSamples(const SourceFiles& files, std::int64_t sequence) : files_(files), sequence_(sequence) {}

  std::int64_t size() const override { return (files_.tokens() - 1) / sequence_; }
  std::int64_t positions() const override { return size() * sequence_; }

  void fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const override {
    TokenWriter to(rows.tokens, rows.labels);
    auto position = first * sequence_;
    const auto end = position + static_cast<std::int64_t>(rows.tokens.size()) + 1;
    while (position < end) {
      const auto [index, at] = files_.token(position);
      const auto& file = files_[index];
      const auto stop = std::min(end - position + at, file.contents().tokens);
      reader.touch(file);
      file.read(at, stop, to, reader.state);
      position += stop - at;
    }
    std::ranges::fill(rows.loss_mask, 1.0F);
  }

 private:
  const SourceFiles& files_;
  std::int64_t sequence_;
};

}  // namespace

std::unique_ptr<SampleSet> make_cut_samples(const SourceFiles& files, std::int64_t sequence) {
  return std::make_unique<CutSamples>(files, sequence);
}

}  // namespace levada
