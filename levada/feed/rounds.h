// Reads a reader's batches, round after round, and turns them into messages.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "levada/base/trace.h"
#include "levada/feed/step_counter.h"
#include "levada/feed/wiring.h"
#include "levada/sources/source.h"
#include "levada/transfer/outbox.h"

namespace levada {

struct FeedOptions;
enum class Tail : std::uint8_t;

/// One thread at a time.
class FeedRounds {
 public:
  FeedRounds(const FeedWiring& wiring, std::shared_ptr<Source> source, const FeedOptions& options);

  /// One unit's batch, as it will be sent.
  struct UnitBatch {
    BlockMemory memory;
    FlatTree content;
    Bytes envelope;
    CopyMode way = CopyMode::cached;
    std::size_t num_prepared = 0;  ///< messages of this batch that have been allocated
  };
  /// A message for one of the reader's audiences.
  struct Outgoing {
    Outbox* outbox = nullptr;
    const Portion* portion = nullptr;
    std::shared_ptr<const UnitBatch> batch;  ///< null once it is complete
    PendingMessage pending;
    PackedMessage packed;

    Channel& channel() const { return outbox->channel(); }
    /// Copies the remaining data, unless that has been done. Must be called before the next read().
    void complete();
  };

  /// Reads all of this reader's batches of the next round and allocates all messages, which the caller must then
  /// complete(). The message for this rank's own audience is the last. Returns nothing if there is no further round:
  /// ended() then has the reason (no more data or steps, or an exception from the source), or abandoned() returns true
  /// because the feed was left. If `allocate` throws an exception that is not a std::exception, the next call continues
  /// the same round and reads nothing again.
  std::vector<Outgoing> read(const AllocateBlock& allocate);
  /// Returns whether such an exception has interrupted the round.
  bool is_interrupted() const { return reading_.has_value(); }
  const std::optional<FeedEnd>& ended() const { return ended_; }
  bool abandoned() const { return abandoned_; }
  /// Returns the position of the next round to read.
  const FeedPosition& next() const { return next_; }
  /// Returns MicroBatch::division of the last round read; 0 without balance.
  std::uint64_t division() const { return division_; }
  /// Returns, once, the digests of the units of the last round that other readers read, too.
  std::vector<feed_protocol::UnitDigest> take_digests() { return std::exchange(digests_, {}); }

  const Source& source() const { return *source_; }
  /// Forwards to Source::on_wait().
  void on_wait(std::function<void()> waiting) { source_->on_wait(std::move(waiting)); }

 private:
  /// Interval at which readers compare the first unit, in rounds.
  static constexpr std::int64_t sampled_rounds = 100;
  /// The division of batches of one structure and shape into messages.
  struct UnitPlan {
    std::vector<std::int64_t> key;
    std::vector<Portion> portions;  ///< one per audience of the unit
  };
  /// One batch of a round: the outboxes of its audiences, and the plans seen so far.
  struct Unit {
    int number = 0;
    bool is_shared = false;  ///< other readers read it, too
    std::span<const Audience> audiences;
    std::vector<Outbox> outboxes;
    std::vector<UnitPlan> plans;
    Schema schema;  ///< schema of the previous batch, and probably of the next one
    StepCounter counter;
  };

  /// A round of which not all messages are allocated.
  struct Reading {
    bool has_sampled = false;  ///< the first unit
    std::vector<std::shared_ptr<UnitBatch>> batches;
    StepTotals totals;  ///< the step so far, with these batches, if reads_all_
    std::vector<Outgoing> outgoing;
  };

  std::int64_t round_samples() const { return wiring_.units * unit_samples_; }
  std::int64_t begin_of(std::int64_t round) const { return first_ + round * round_samples(); }
  /// Returns the number of samples in the round, or in one of its batches, as far as it is known.
  std::int64_t samples_in(std::int64_t round) const;
  std::int64_t samples_in(std::int64_t round, const Unit& unit) const;
  /// Returns the totals of a batch that was just read.
  StepTotals totals_of(Unit& unit, std::int64_t round, const FlatTree& batch) const;
  /// Returns whether the data or the steps end before this round, and if so records the end.
  bool is_over(std::int64_t round);
  /// Reads the batches of the round that reading_ lacks. Returns false if the data ends before the round does.
  bool read_batches(std::int64_t round, const AllocateBlock& allocate);
  std::vector<Outgoing> finish_round(std::int64_t round);
  /// Announces to the source the samples that this round and the next ones will read.
  void announce(std::int64_t round);
  std::optional<Tree> read_unit(const Unit& unit, std::int64_t round, Memory& memory);
  /// Returns whether all readers compare the first unit of this round, although only one of them sends it.
  bool is_sampled(std::int64_t round) const { return samples_first_unit_ && round % sampled_rounds == 0; }
  /// Reads the first unit, which another reader sends, only for its digest.
  void sample_first_unit(std::int64_t round, const AllocateBlock& allocate);
  /// Completes a batch that has fewer samples than a full unit, as the tail option says. `batch` is empty if the unit
  /// has no samples.
  std::optional<Tree> complete(const Unit& unit, std::int64_t round, std::optional<Tree> batch);
  void prepare(Unit& unit, std::int64_t round, const std::shared_ptr<UnitBatch>& batch, const AllocateBlock& allocate);
  const UnitPlan& plan_of(Unit& unit, const FlatTree& batch);
  void end(FeedEnd::Cause cause);

  const FeedWiring& wiring_;
  FanOutOptions fan_out_;
  std::shared_ptr<Source> source_;
  std::int64_t unit_samples_;  ///< in a full unit
  Tail tail_;
  bool divides_sequences_;
  bool may_part_labels_;
  bool reads_all_;  ///< there is no other reader
  bool samples_first_unit_ = false;
  std::int64_t first_;
  std::optional<std::int64_t> steps_;
  FeedPosition next_;
  std::optional<Reading> reading_;
  StepTotals totals_;  ///< the step so far, if reads_all_
  std::uint64_t division_ = 0;
  std::vector<feed_protocol::UnitDigest> digests_;
  TraceLog* trace_;
  std::vector<Unit> units_;
  std::int64_t announced_ = 0;  ///< in rounds
  std::optional<FeedEnd> ended_;
  bool abandoned_ = false;
};

}  // namespace levada
