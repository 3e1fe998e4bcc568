// Where samples come from.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levada/plan/sample_cost.h"
#include "levada/tensor/tensor.h"
#include "levada/tree/tree.h"

namespace levada {

/// Counters of a reader since it was made.
struct ReadStats {
  std::uint64_t bytes_read = 0;      ///< from storage, for samples
  std::uint64_t bytes_consumed = 0;  ///< of the stored data that the samples given out consist of
  std::uint64_t prepare_bytes = 0;   ///< from storage, before the first sample
};

/// How the activity() of a source begins that reads earlier items again, followed by "37 of 50".
inline constexpr std::string_view rereading = "re-reading item ";

/// Which part of a step a batch is.
struct MicroBatch {
  std::int64_t step = 0;                  ///< from 0
  std::int64_t micro = 0, num_micro = 1;  ///< which one of how many it is
  std::int64_t samples = 0;               ///< in it
  std::uint64_t division = 0;             ///< a hash of which samples its step and those before have in which batch
  bool ends_step() const { return micro + 1 == num_micro; }
  bool operator==(const MicroBatch&) const = default;
};

/// What read() throws when its user no longer wants the batch: the feed ends as it does for a rank that leaves.
class ReadAbandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the batch is no longer wanted"; }
};

/// A finite or endless sequence of samples, numbered from 0 over all epochs. Number g names the same sample on every
/// rank and in every run. One thread at a time.
class Source {
 public:
  virtual ~Source() = default;

  /// Returns the number of samples; empty while it is unknown. It is known once read() has returned fewer samples than
  /// requested.
  virtual std::optional<std::int64_t> size() const = 0;

  /// Returns samples [first, first + count) as one batch; fewer only at the end, empty behind it. Its tensors are
  /// allocated from `memory`, or borrowed from the source, which keeps them unchanged until the next read(). Dim 0 of
  /// each tensor indexes the samples. `first` increases from call to call, except for a repeated request for the last
  /// sample; a source without random access reads the samples between and drops them. Throws SourceError, naming file
  /// and position; ReadAbandoned. Any other exception reaches every rank as a SourceError.
  virtual std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) = 0;

  /// Returns how many rows along dim 0 of its tensors a sample has that read() has returned as `batch`.
  virtual std::int64_t rows_per_sample(const Tree& /*batch*/) const { return 1; }

  /// Returns what the lengths of all segments of its packed rows are multiples of; 0 if its rows are not packed.
  virtual std::int64_t segment_multiple() const { return 0; }

  /// Where samples are micro-batches, returns which part of a step sample `number` of the last read() is; else empty.
  virtual std::optional<MicroBatch> micro_batch(std::int64_t /*number*/) const { return {}; }

  /// Announces a later read(), in the order of the reads. A source on remote storage fetches ahead.
  virtual void will_read(std::int64_t /*first*/, std::int64_t /*count*/) {}

  /// Returns the sizes of samples [first, first + count), by which a caller divides them before reading; fewer only at
  /// the end. Without random access, calls follow each other without gaps. Throws as read() does; Unsupported where
  /// sizes are not known.
  virtual std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count);

  /// Returns whether sizes() and gather() accept any samples at any time.
  virtual bool has_random_access() const { return false; }

  /// Returns whether samples that are passed over are not made, so that readers of other samples cannot compare them.
  virtual bool is_by_number() const { return has_random_access(); }

  /// Returns these samples, in this order, as one batch: rows, or the segments of one packed row. Without random access
  /// they must be among those of the last sizes(). Memory as for read(). Throws as sizes() does.
  virtual Tree gather(std::span<const std::int64_t> samples, Memory& memory);

  /// Returns the position before sample `next`, from which another run can resume, as portable bytes.
  virtual Bytes cursor(std::int64_t next) const = 0;

  /// Returns what determines the samples and their order, as names and values; empty where that is not known. Ranks
  /// that read for the same feed compare theirs before the first step.
  virtual std::vector<std::pair<std::string, std::string>> identity() const { return {}; }

  /// Returns whether a leaf of a batch has the same bytes on every rank that reads the same sample: if not, readers do
  /// not compare it.
  virtual bool is_comparable(const Leaf& /*leaf*/) const { return true; }

  /// Returns why two readers may have read different samples of the same numbers, and what to do, as the end of an
  /// error.
  virtual std::string difference_remedy() const {
    return "give all ranks that read the same data, or let one of them read (readers=\"one\", --readers one)";
  }

  /// Sets a function for the source to call about ten times a second, on the reading thread, while a read() waits. An
  /// exception that it throws ends the read(). Must be set before the first read(). A source whose waits are short may
  /// ignore it.
  virtual void on_wait(std::function<void()> /*waiting*/) {}

  /// Returns the current activity for the status board: "reading corpus.jsonl". Any thread may call.
  virtual std::string activity() const = 0;
  virtual ReadStats stats() const = 0;
};

}  // namespace levada
