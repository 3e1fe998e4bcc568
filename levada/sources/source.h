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

/// Which part of a step a batch is.
struct MicroBatch {
  std::int64_t step = 0;                  ///< from 0
  std::int64_t micro = 0, num_micro = 1;  ///< which one of how many it is
  std::int64_t samples = 0;               ///< in it
  bool ends_step() const { return micro + 1 == num_micro; }
  bool operator==(const MicroBatch&) const = default;
};

/// What read() throws when its user no longer wants the batch: the feed ends as it does for a rank that leaves.
class ReadAbandoned : public std::exception {
 public:
  const char* what() const noexcept override { return "the batch is no longer wanted"; }
};

/// An endless or ended row of samples, numbered from 0 over all epochs; number g names the same sample whoever asks.
/// One thread at a time.
class Source {
 public:
  virtual ~Source() = default;

  /// Samples in all; empty as long as that has not shown. It has once read() has given fewer than were asked for.
  virtual std::optional<std::int64_t> size() const = 0;

  /// Samples [first, first + count) as one batch; fewer only at the end, empty when none is there. Its tensors are
  /// asked of `memory`, or lent: then they stay as they are until the next read() and no longer. Along dim 0 of a
  /// tensor lie the samples. Calls come with rising `first`, but for one that asks for the last sample again; a source
  /// without random access reads what lies between and drops it. Throws SourceError, naming file and place;
  /// ReadAbandoned; whatever else it throws reaches every rank as a SourceError.
  virtual std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) = 0;

  /// Which part of a step sample `number` is, of those that read() gave last, where samples are micro-batches; else
  /// empty.
  virtual std::optional<MicroBatch> micro_batch(std::int64_t /*number*/) const { return {}; }

  /// Announces a read() to come; announcements come in the order of the reads. A source on remote storage fetches
  /// ahead.
  virtual void will_read(std::int64_t /*first*/, std::int64_t /*count*/) {}

  /// What samples [first, first + count) take, for those who divide them by it before they are read; fewer only at the
  /// end. Without random access calls come one behind the other. Throws as read() does; Unsupported where it is not
  /// known.
  virtual std::vector<SampleSize> sizes(std::int64_t first, std::int64_t count);

  /// Whether sizes() and gather() take any samples at any time.
  virtual bool has_random_access() const { return false; }

  /// Samples, in this order, as one batch: rows, or the segments of one packed row. Without random access they are some
  /// of the last sizes(). Memory as of read(). Throws as sizes() does.
  virtual Tree gather(std::span<const std::int64_t> samples, Memory& memory);

  /// Position before sample `next`, from which another run can go on: portable bytes.
  virtual Bytes cursor(std::int64_t next) const = 0;

  /// What decides which samples it has and in which order, as names and values. Ranks that read for the same feed
  /// compare theirs before the first step. Empty where nothing is known of that.
  virtual std::vector<std::pair<std::string, std::string>> identity() const { return {}; }

  /// `waiting` is to be called about ten times a second, on the reading thread, while a read() waits for something.
  /// What it throws ends the read(). To be set before the first one. A source that never waits for long need not.
  virtual void on_wait(std::function<void()> /*waiting*/) {}

  /// What it is doing, for the status board: "reading corpus.jsonl". Any thread may ask.
  virtual std::string activity() const = 0;
  virtual ReadStats stats() const = 0;
};

}  // namespace levada
