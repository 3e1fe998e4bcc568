#include "levada/corpus/packed_samples.h"

#include <limits>

namespace levada {

PackedSamples::PackedSamples(const SourceFiles& files, Packing packing, std::int64_t sequence, std::int64_t pad_to)
    : files_(files),
      packing_(packing),
      sequence_(sequence),
      pad_to_(pad_to),
      order_(
          files.documents(),
          [&files](std::int64_t document) {
            const auto [index, at] = files.document(document);
            return files[index].document_tokens(at);
          },
          sequence, pad_to, packing == Packing::documents ? 1 : std::numeric_limits<std::int64_t>::max()) {}

SampleSize PackedSamples::size_of(std::int64_t number) const {
  SampleSize size;
  const auto add_segment = [&](std::int64_t positions) {
    size.tokens += positions;
    size.squares += positions * positions;
  };
  for (std::int64_t i = 0; i < order_.pieces(number); ++i) {
    const auto positions = order_.piece(number, i).positions;
    add_segment(order_.rounded(positions));
    size.padding += order_.rounded(positions) - positions;
  }
  if (packing_ != Packing::documents) {
    size.padding += sequence_ - size.tokens;
    add_segment(sequence_ - size.tokens);
  }
  return size;
}

void PackedSamples::fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const {
  for (std::size_t row = 0; row < rows.rows; ++row) {
    fill_row(first + static_cast<std::int64_t>(row), rows.part(row, 1), reader);
  }
}

void PackedSamples::will_fill(std::int64_t sample) const {
  for (std::int64_t number = 0; number < order_.pieces(sample); ++number) {
    const auto piece = order_.piece(sample, number);
    const auto [index, document] = files_.document(piece.document);
    const auto begin = files_[index].document_begin(document) + piece.from;
    files_[index].will_read(begin, begin + piece.positions + 1);
  }
}

void PackedSamples::fill_row(std::int64_t sample, const BatchRows& row, RowReader& reader) const {
  PackedRow packed(row, pad_to_);
  const auto pieces = order_.pieces(sample);
  for (std::int64_t number = 0; number < pieces; ++number) {
    const auto piece = order_.piece(sample, number);
    const auto [index, document] = files_.document(piece.document);
    const auto& file = files_[index];
    const auto segment = packed.add(static_cast<std::size_t>(piece.positions));
    TokenWriter to(segment.tokens, segment.labels, segment.loss_mask);
    reader.touch(file);
    const auto begin = file.document_begin(document) + piece.from;
    file.read(begin, begin + piece.positions + 1, to, reader.state);
  }
  packed.finish();
}

}  // namespace levada
