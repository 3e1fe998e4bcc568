// The interface of data sources.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "levada/plan/sample_cost.h"
#include "levada/tensor/tensor.h"
#include "levada/tree/schema.h"
#include "levada/tree/tree.h"

namespace levada {

/// Counters of a reader since its construction.
struct ReadStats {
  std::uint64_t bytes_read = 0;      ///< from storage, for samples
  std::uint64_t bytes_consumed = 0;  ///< stored data that made up the returned samples
  std::uint64_t prepare_bytes = 0;   ///< from storage, before the first sample
};

/// Start of the activity() of a source that re-reads earlier items; followed by "37 of 50".
inline constexpr std::string_view rereading = "re-reading item ";

/// Counts of a step over all data-parallel ranks. A number is empty if it is unknown.
struct StepTotals {
  std::int64_t samples = 0;                ///< without padding
  std::optional<std::int64_t> tokens = 0;  ///< positions of the sequences
  std::optional<std::int64_t> labels = 0;  ///< positions with a loss

  static auto fields(auto& self) { return std::tie(self.samples, self.tokens, self.labels); }
  StepTotals& operator+=(const StepTotals& other) {
    const auto add = [](std::optional<std::int64_t>& sum, const std::optional<std::int64_t>& number) {
      sum = sum && number ? std::optional(*sum + *number) : std::nullopt;
    };
    samples += other.samples;
    add(tokens, other.tokens);
    add(labels, other.labels);
    return *this;
  }
  bool operator==(const StepTotals&) const = default;
};

/// Identifies the part of a step that a batch holds.
struct MicroBatch {
  std::int64_t step = 0;                  ///< from 0
  std::int64_t micro = 0, num_micro = 1;  ///< index and number of micro-batches in the step
  std::int64_t samples = 0;               ///< number of samples in it
  int cp_size = 1;                        ///< consecutive data coordinates that each have a part of it
  std::uint64_t division = 0;             ///< hash of how this step and all earlier ones are divided into batches
  /// Totals of the whole row, if cp_size > 1, without samples.
  StepTotals row = {};
  bool ends_step() const { return micro + 1 == num_micro; }
  bool operator==(const MicroBatch&) const = default;
};

/// Thrown by read() when the caller no longer wants the batch: the feed ends as if the rank had closed it.
class ReadAbandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the batch is no longer wanted"; }
};

/// A finite or endless sequence of samples, numbered from 0 across all epochs. A number identifies the same sample on
/// every rank and in every run. One thread at a time.
class Source {
 public:
  virtual ~Source() = default;

  /// Returns the number of samples, or nothing while it is unknown. It is known once read() has returned fewer samples
  /// than requested.
  virtual std::optional<std::int64_t> size() const = 0;

  /// Returns samples [first, first + count) as one batch; fewer only at the end, and nothing past it. Its tensors are
  /// allocated from `memory`, or borrowed from the source, which keeps them unchanged until the next read(). Dim 0 of
  /// each tensor indexes the samples. `first` increases from call to call, except for a repeated request for the last
  /// sample; a source without random access reads and drops the samples in between. Throws SourceError that names file
  /// and position, or ReadAbandoned. Any other exception reaches every rank as a SourceError.
  virtual std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) = 0;

  /// Returns the number of rows along dim 0 that the first `samples` samples have in a `batch` returned by read().
  virtual std::int64_t num_rows(const FlatTree& /*batch*/, std::int64_t samples) const { return samples; }

  /// Returns a common divisor of all segment lengths in packed rows; 0 if rows are not packed.
  virtual std::int64_t segment_multiple() const { return 0; }

  /// Returns whether each sample is one sequence, and not a row of several, so that gather() returns a packed row with
  /// a segment for each.
  virtual bool has_single_sequences() const { return true; }

  /// Returns which part of a step sample `number` of the last read() is, or nothing if samples are not micro-batches.
  virtual std::optional<MicroBatch> micro_batch(std::int64_t /*number*/) const { return {}; }

  /// Announces a later read(), in the order of the reads. A source on remote storage fetches ahead.
  virtual void will_read(std::int64_t /*first*/, std::int64_t /*count*/) {}

  /// Returns the sizes of samples [first, first + count), so that a caller can divide them before reading; fewer only
  /// at the end. Without random access, successive calls must be contiguous. Throws as read() does, and Unsupported if
  /// sizes are not known.
  virtual std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count);

  /// Returns whether sizes() and gather() accept any samples at any time.
  virtual bool has_random_access() const { return false; }

  /// Returns whether skipped samples are not produced at all, so that readers of other samples cannot compare them.
  virtual bool is_by_number() const { return has_random_access(); }

  /// Returns these samples, in this order, as one batch: rows, or the segments of one packed row. Without random access
  /// they must be among those of the last sizes(). Allocates as read() does. Throws as sizes() does.
  virtual Tree gather(std::span<const std::int64_t> samples, Memory& memory);

  /// Returns the position before sample `next`, from which another run can resume, as portable bytes.
  virtual Bytes cursor(std::int64_t next) const = 0;

  /// Returns the names and values that determine the samples and their order; empty if unknown. Ranks that read for the
  /// same feed compare theirs before the first step.
  virtual std::vector<std::pair<std::string, std::string>> identity() const { return {}; }

  /// Returns whether a leaf of a batch has the same bytes on every rank that reads the same sample. Readers do not
  /// compare other leaves.
  virtual bool is_comparable(const Leaf& /*leaf*/) const { return true; }

  /// Returns the end of an error message, which explains why two readers may have read different samples for the same
  /// numbers, and what to do.
  virtual std::string difference_remedy() const {
    return "let all ranks that read have the same data, or let only one of them read (readers=\"one\", --readers one)";
  }

  /// Sets a function that the source calls about ten times a second, on the reading thread, while a read() waits. An
  /// exception that it throws ends the read(). Must be set before the first read(). A source whose waits are short may
  /// ignore it.
  virtual void on_wait(std::function<void()> /*waiting*/) {}

  /// Returns the current activity for the status board: "reading corpus.jsonl". Thread-safe.
  virtual std::string activity() const = 0;
  virtual ReadStats stats() const = 0;
};

}  // namespace levada
