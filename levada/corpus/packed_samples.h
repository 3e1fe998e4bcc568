// Samples that hold whole documents, several or one per sample.
#pragma once

#include "levada/corpus/known_orders.h"
#include "levada/corpus/packing.h"
#include "levada/corpus/sample_set.h"

namespace levada {

/// Samples of a PackedOrder of the documents of `files`, cut at `sequence`. Borrows the files. A sample of
/// Packing::documents is as long as its document with its padding; other samples are as long as `sequence`. The
/// remainder of a longer row is padding.
class PackedSamples final : public SampleSet {
 public:
  /// `packing`: any except Packing::cut.
  PackedSamples(const SourceFiles& files, Packing packing, std::int64_t sequence, std::int64_t pad_to,
                const KnownOrders& known, const KnownOrders::Progress& progress);

  std::int64_t size() const override { return order_.size(); }
  std::int64_t positions() const override { return order_.positions(); }
  std::optional<std::int64_t> max_segments() const override { return order_.max_segments(); }
  SampleSize size_of(std::int64_t number) const override;
  void fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const override;
  void will_fill(std::int64_t number) const override;

 private:
  void fill_row(std::int64_t sample, const BatchRows& row, RowReader& reader) const;

  const SourceFiles& files_;
  Packing packing_;
  PackingOptions options_;
  PackedOrder order_;
};

}  // namespace levada
