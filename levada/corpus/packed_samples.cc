#include "levada/corpus/packed_samples.h"

#include <algorithm>

namespace levada {

PackedSamples::PackedSamples(const SourceFiles& files, std::int64_t sequence, std::int64_t pad_to)
    : files_(files),
      pad_to_(pad_to),
      order_(
          files.documents(),
          [&files](std::int64_t document) {
            const auto [index, at] = files.document(document);
            return files[index].document_tokens(at);
          },
          sequence, pad_to) {}

void PackedSamples::fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const {
  for (std::size_t row = 0; row < rows.rows; ++row) {
    fill_row(first + static_cast<std::int64_t>(row), rows.part(row, 1), reader);
  }
}

void PackedSamples::fill_row(std::int64_t sample, const BatchRows& row, RowReader& reader) const {
  std::size_t at = 0;
  const auto pieces = order_.pieces(sample);
  for (std::int64_t number = 0; number < pieces; ++number) {
    const auto piece = order_.piece(sample, number);
    const auto [index, document] = files_.document(piece.document);
    const auto& file = files_[index];
    const auto length = static_cast<std::size_t>(piece.positions);
    TokenWriter to(row.tokens.subspan(at, length), row.labels.subspan(at, length));
    reader.touch(file);
    const auto begin = file.document_begin(document) + piece.from;
    file.read(begin, begin + piece.positions + 1, to, reader.state);
    const auto padded = (length + static_cast<std::size_t>(pad_to_) - 1) / static_cast<std::size_t>(pad_to_) *
                        static_cast<std::size_t>(pad_to_);
    std::ranges::fill(row.loss_mask.subspan(at, length), 1.0F);
    const auto padding = [&](auto field) { std::ranges::fill(field.subspan(at + length, padded - length), 0); };
    padding(row.tokens);
    padding(row.labels);
    padding(row.loss_mask);
    row.cu_seqlens[static_cast<std::size_t>(number)] = static_cast<std::int32_t>(at);
    at += padded;
  }
  std::ranges::fill(row.tokens.subspan(at), 0);
  std::ranges::fill(row.labels.subspan(at), 0);
  std::ranges::fill(row.loss_mask.subspan(at), 0.0F);
  const auto behind = row.cu_seqlens.subspan(static_cast<std::size_t>(pieces));
  std::ranges::fill(behind, static_cast<std::int32_t>(row.tokens.size()));
  behind.front() = static_cast<std::int32_t>(at);
}

}  // namespace levada
