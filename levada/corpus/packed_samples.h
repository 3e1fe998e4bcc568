// Samples that hold whole documents side by side.
#pragma once

#include "levada/corpus/packing.h"
#include "levada/corpus/sample_set.h"

namespace levada {

/// Samples of a PackedOrder of the documents of `files`, which must be opened by_document, cut at `sequence`. Borrows
/// them.
class PackedSamples final : public SampleSet {
 public:
  PackedSamples(const SourceFiles& files, std::int64_t sequence, std::int64_t pad_to);

  std::int64_t size() const override { return order_.size(); }
  std::int64_t positions() const override { return order_.positions(); }
  std::optional<std::int64_t> most_segments() const override { return order_.most_segments(); }
  void fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const override;

 private:
  void fill_row(std::int64_t sample, const BatchRows& row, RowReader& reader) const;

  const SourceFiles& files_;
  std::int64_t pad_to_;
  PackedOrder order_;
};

}  // namespace levada
