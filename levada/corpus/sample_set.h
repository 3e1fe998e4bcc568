// The samples of one source, from which the rows of a batch are filled.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "levada/corpus/batch_rows.h"
#include "levada/corpus/source_files.h"
#include "levada/plan/sample_cost.h"

namespace levada {

/// The state of one reading thread.
struct RowReader {
  ReadState state;
  std::vector<const TokenFile*> touched;              ///< files read since the last check, each once
  std::atomic<const TokenFile*>* activity = nullptr;  ///< set to the file that is being read

  void touch(const TokenFile& file) {
    *activity = &file;
    if (std::ranges::find(touched, &file) == touched.end()) touched.push_back(&file);
  }
};

/// N samples, numbered in storage order. Any number of threads may call fill() concurrently.
class SampleSet {
 public:
  virtual ~SampleSet() = default;

  virtual std::int64_t size() const = 0;
  /// Returns the number of positions with a label in all samples.
  virtual std::int64_t positions() const = 0;
  /// Returns the maximum number of segments in a sample; empty if samples are not packed.
  virtual std::optional<std::int64_t> max_segments() const { return std::nullopt; }
  virtual SampleSize size_of(std::int64_t number) const = 0;
  /// Fills the rows with samples `first`, first + 1, ..., except the fields that fill_derived() fills. Throws
  /// SourceError.
  virtual void fill(std::int64_t first, const BatchRows& rows, RowReader& reader) const = 0;
  /// Announces that sample `number` will be filled.
  virtual void will_fill(std::int64_t number) const = 0;
};

/// Returns samples of concatenated and cut documents: sample i is tokens [i * sequence, i * sequence + sequence].
/// Borrows `files`.
std::unique_ptr<SampleSet> make_cut_samples(const SourceFiles& files, std::int64_t sequence);

}  // namespace levada
