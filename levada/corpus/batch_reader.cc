#include "levada/corpus/batch_reader.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "levada/base/error.h"

namespace levada {
namespace {

/// Consecutive samples of a source that fill consecutive rows of a batch.
struct Run {
  StoredSample first;
  std::size_t row = 0, rows = 1;
};

std::vector<Run> runs_of(std::span<const StoredSample> samples, std::size_t threads) {
  const auto longest = (samples.size() + threads - 1) / threads;
  std::vector<Run> runs;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const auto& sample = samples[row];
    if (!runs.empty()) {
      auto& last = runs.back();
      const bool next = last.first.source == sample.source &&
                        last.first.number + static_cast<std::int64_t>(last.rows) == sample.number;
      if (next && last.rows < longest) {
        ++last.rows;
        continue;
      }
    }
    runs.push_back({sample, row, 1});
  }
  return runs;
}

/// Returns segment `index` of a packed row as a separate row with these cu_seqlens, without derived fields.
BatchRows segment_of(const BatchRows& row, std::size_t index, std::span<std::int32_t> cu_seqlens) {
  const auto begin = static_cast<std::size_t>(row.cu_seqlens[index]);
  const auto length = static_cast<std::size_t>(row.cu_seqlens[index + 1]) - begin;
  return {.rows = 1,
          .tokens = row.tokens.subspan(begin, length),
          .labels = row.labels.subspan(begin, length),
          .position_ids = {},
          .loss_mask = row.loss_mask.subspan(begin, length),
          .cu_seqlens = cu_seqlens,
          .max_seqlen = {},
          .attention_mask = {}};
}

}  // namespace

BatchReader::BatchReader(const std::vector<std::unique_ptr<const OpenedSource>>& sources, const BatchForm& form,
                         int threads, EntryVerifier* verifier)
    : sources_(sources), form_(form), verifier_(verifier), pool_(threads, "reading (--io-threads, io_threads=)") {
  readers_.resize(static_cast<std::size_t>(pool_.size()));
  for (auto& reader : readers_) reader.activity = &reading_;
}

Tree BatchReader::read_rows(std::span<const StoredSample> samples, Memory& memory) {
  auto batch = make_batch(form_, static_cast<std::int64_t>(samples.size()), memory);
  const auto runs = runs_of(samples, static_cast<std::size_t>(pool_.size()));
  fill_checked(runs.size(), [&](std::size_t piece, RowReader& reader) {
    const auto& run = runs[piece];
    const auto part = batch.rows.part(run.row, run.rows);
    sources_[run.first.source]->samples->fill(run.first.number, part, reader);
    part.fill_derived(form_);
  });
  return Tree::dict(std::move(batch.fields));
}

Tree BatchReader::read_packed_row(std::span<const StoredSample> samples, Memory& memory) {
  std::vector<std::int64_t> bounds = {0};
  for (const auto& sample : samples) {
    bounds.push_back(bounds.back() + sources_[sample.source]->samples->size_of(sample.number).tokens);
  }
  if (bounds.back() > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(
        fmt::format("the {} documents of a packed row have {} positions, more than an int32 of cu_seqlens can count: "
                    "divide them among more rows",
                    samples.size(), bounds.back()));
  }
  auto form = form_;
  form.sequence = bounds.back();
  form.max_segments = static_cast<std::int64_t>(samples.size());
  auto batch = make_batch(form, 1, memory);
  const auto& row = batch.rows;
  std::ranges::transform(bounds, row.cu_seqlens.begin(), [](auto bound) { return static_cast<std::int32_t>(bound); });
  fill_checked(samples.size(), [&](std::size_t piece, RowReader& reader) {
    const auto& sample = samples[piece];
    std::array<std::int32_t, 2> own_bounds = {};
    sources_[sample.source]->samples->fill(sample.number, segment_of(row, piece, own_bounds), reader);
  });
  row.fill_derived(form);
  return Tree::dict(std::move(batch.fields));
}

void BatchReader::fill_checked(std::size_t pieces, const std::function<void(std::size_t, RowReader&)>& fill) try {
  pool_.run(pieces, [&](std::size_t piece, std::size_t member) { fill(piece, readers_[member]); });
  reading_ = nullptr;
  check_touched();
} catch (const SourceError&) {
  reading_ = nullptr;
  check_touched();  // a changed file is a clearer error than its content
  throw;
}

void BatchReader::check_touched() {
  std::vector<const TokenFile*> touched;
  for (auto& reader : readers_) {
    touched.insert(touched.end(), reader.touched.begin(), reader.touched.end());
    reader.touched.clear();
  }
  for (const auto* file : touched) file->check();
  if (verifier_ == nullptr) return;
  for (const auto* file : touched) verifier_->use(*file);
}

std::string BatchReader::activity() const {
  const auto* file = reading_.load();
  return file == nullptr ? "between two batches" : "reading " + file->path();
}

ReadStats BatchReader::stats() const {
  ReadStats all;
  for (const auto& reader : readers_) {
    all.bytes_read += reader.state.stats.bytes_read;
    all.bytes_consumed += reader.state.stats.bytes_consumed;
  }
  return all;
}

}  // namespace levada
