#include "levada/corpus/packed_samples.h"

#include <limits>

namespace levada {

PackedSamples::PackedSamples(const SourceFiles& files, Packing packing, std::int64_t sequence, std::int64_t pad_to,
                             const KnownOrders& known, const KnownOrders::Progress& progress)
    : files_(files),
      packing_(packing),
      options_{.sequence = sequence,
               .pad_to = pad_to,
               .max_pieces = packing == Packing::documents ? 1 : std::numeric_limits<std::int64_t>::max()},
      order_(known.order_of(files, options_, progress)) {}

SampleSize PackedSamples::size_of(std::int64_t number) const {
  SampleSize size;
  const auto add_segment = [&](std::int64_t positions) {
    size.tokens += positions;
    size.squares += positions * positions;
  };
  for (const auto& piece : order_.pieces(number)) {
    add_segment(options_.rounded(piece.positions));
    size.padding += options_.rounded(piece.positions) - piece.positions;
  }
  if (packing_ != Packing::documents) {
    size.padding += options_.sequence - size.tokens;
    add_segment(options_.sequence - size.tokens);
  }
  return size;
}

void PackedSamples::fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const {
  for (std::size_t row = 0; row < rows.rows; ++row) {
    fill_row(first + static_cast<std::int64_t>(row), rows.part(row, 1), reader);
  }
}

void PackedSamples::will_fill(std::int64_t sample) const {
  for (const auto& piece : order_.pieces(sample)) {
    const auto [index, begin] = files_.token(piece.begin);
    files_[index].will_read(begin, begin + piece.positions + 1);
  }
}

void PackedSamples::fill_row(std::int64_t sample, const BatchRows& row, RowReader& reader) const {
  PackedRow packed(row, options_.pad_to);
  for (const auto& piece : order_.pieces(sample)) {
    const auto [index, begin] = files_.token(piece.begin);
    const auto& file = files_[index];
    const auto segment = packed.add(static_cast<std::size_t>(piece.positions));
    TokenWriter to(segment.tokens, segment.labels, segment.loss_mask);
    reader.touch(file);
    file.read(begin, begin + piece.positions + 1, to, reader.state);
  }
  packed.finish();
}

}  // namespace levada
