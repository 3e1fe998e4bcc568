// A source of a corpus: its files, and the order of its samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/corpus/file_opener.h"
#include "levada/corpus/mix_file.h"
#include "levada/corpus/mix_schedule.h"
#include "levada/corpus/sample_set.h"
#include "levada/corpus/source_files.h"
#include "levada/order/epoch_order.h"

namespace levada {

class OpenedSource {
 public:
  /// `alone`: whether it is the only source. Throws InvalidArgument if there is too little data.
  OpenedSource(const CorpusSource& source, std::vector<OpenedFile> opened, const CorpusOptions& options, bool alone,
               std::optional<std::uint64_t> shuffle_seed);

  /// Returns the mean number of tokens with a label per sample.
  double mean_tokens() const {
    return static_cast<double>(samples->positions()) / static_cast<double>(samples->size());
  }
  /// Returns the number of its samples, bounded by its cap.
  std::int64_t own_samples() const { return std::min(samples->size(), max_samples.value_or(samples->size())); }

  std::string name;
  double weight;
  SourceFiles files;
  std::unique_ptr<SampleSet> samples;
  std::optional<std::uint64_t> seed;        ///< seed of each epoch's order; empty: storage order
  std::optional<std::int64_t> max_samples;  ///< cap on the total number of samples
};

/// One of the samples that a source stores.
struct StoredSample {
  std::size_t source = 0;
  std::int64_t number = 0;
};

/// Maps a reader's sample numbers to stored samples.
class SampleWalk {
 public:
  /// Borrows the sources.
  SampleWalk(std::optional<MixSchedule> mix, const std::vector<std::unique_ptr<const OpenedSource>>& sources)
      : mix_(std::move(mix)) {
    for (const auto& source : sources) orders_.emplace_back(source->samples->size(), source->seed);
  }

  StoredSample at(std::int64_t number) {
    const auto mixed = mix_ ? mix_->at(number) : MixedSample{0, number};
    return {mixed.source, orders_[mixed.source].at(mixed.number)};
  }

 private:
  std::optional<MixSchedule> mix_;
  std::vector<EpochOrder> orders_;
};

}  // namespace levada
