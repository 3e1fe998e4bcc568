// The decisions of a feed as values, without I/O: how far all ranks may advance, and where they stop.
//
// The lead is the first reader. Readers report to it how many rounds they have sent (Ready), and where and why their
// data ended (Stopped); ranks ask it to stop all of them (StopAsked). It decides how many rounds may be used (granted)
// and, once, the end. A single reader needs no grants: a round reaches all of its audiences or none, so every round
// that has arrived may be used.
//
// A step is one round, or one round per micro-batch. A stop that a rank asks for takes effect after the last round of a
// step. All ordering is by rounds; steps are counted only for people.
//
// A reader that does not read ahead reads a round when its caller asks for it. No other reader knows when it does, so a
// stop of several such readers takes effect after the round that may be under way: the one after the granted rounds.
//
// Readers of the same unit must send the same content. Each Ready carries digests of the units that other readers read,
// too. The lead compares them before it grants the round, so no rank gets content that differs between readers.
//
// A rank that leaves the feed reports that too (Left), and the lead forwards it to all ranks. Each rank decides for
// itself what that means: ranks that leave at the same step never notice, and a rank that asks for that step gets an
// error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"

namespace levada {

/// The progress of a feed: `round` rounds are done, and the next one is micro-batch `micro` of step `step`.
struct FeedPosition {
  std::int64_t round = 0;
  std::int64_t step = 0;   ///< completed steps
  std::int64_t micro = 0;  ///< 0 between two steps

  /// Advances past a round. `ends_step`: whether the round is the last of its step.
  void advance(bool ends_step) {
    ++round;
    step += ends_step ? 1 : 0;
    micro = ends_step ? 0 : micro + 1;
  }
  bool operator==(const FeedPosition&) const = default;
};

/// Returns "step 3" or, within a step, "step 3, micro-batch 1".
std::string to_string(const FeedPosition& position);

/// The end of a feed and its cause. `left` and `abandoned` are one rank's view; all other ends are the same on every
/// rank.
struct FeedEnd {
  enum class Cause : std::uint8_t {
    exhausted = 1,  ///< no further round of data
    steps = 2,      ///< the requested number of steps is done
    stopped = 3,    ///< a rank asked all ranks to stop
    failed = 4,     ///< a reader threw
    left = 5,       ///< this rank closed its feed
    abandoned = 6,  ///< another rank left, and this one could not continue without it
  };
  Cause cause = Cause::exhausted;
  FeedPosition at;  ///< after the last round that was delivered
  int rank = 0;     ///< the reader whose data ended or failed, or the rank that left or asked for the stop
  ErrorKind error = ErrorKind::source;
  std::string message;  ///< error message
  bool operator==(const FeedEnd&) const = default;
};

/// Returns "exhausted", "steps", "stopped", "failed", "left" or "abandoned".
std::string_view to_string(FeedEnd::Cause cause);

namespace feed_protocol {

/// Digest of a field's content, as one reader has read it.
struct FieldDigest {
  std::string path;
  std::uint64_t digest = 0;
  bool operator==(const FieldDigest&) const = default;
};
/// Digests of one unit's content in a round, as one reader has read it.
struct UnitDigest {
  int unit = 0;
  std::uint64_t structure = 0;  ///< Schema::fingerprint()
  std::vector<FieldDigest> fields;
  bool operator==(const UnitDigest&) const = default;
};
/// Reader number `reader` has sent all rounds before this position. Sent for each round.
struct Ready {
  int reader = 0;
  FeedPosition at;
  std::uint64_t division = 0;     ///< MicroBatch::division of the last round; 0 without balance
  std::vector<UnitDigest> units;  ///< units of the last round that other readers read, too
  bool operator==(const Ready&) const = default;
};
/// Reader number `reader` will send no more than end.at.round rounds.
struct Stopped {
  int reader = 0;
  FeedEnd end;
  bool operator==(const Stopped&) const = default;
};
/// A rank asks all ranks to stop.
struct StopAsked {
  int rank = 0;
  bool operator==(const StopAsked&) const = default;
};
/// A rank has left at this position and will not use another round.
struct Left {
  int rank = 0;
  FeedPosition at;
  std::string reason;  ///< the exception that made it leave; empty if none did
  bool operator==(const Left&) const = default;
};
/// The lead's decision that this many rounds may be used.
struct Granted {
  std::int64_t rounds = 0;
  bool operator==(const Granted&) const = default;
};
/// The lead's final decision.
struct Ended {
  FeedEnd end;
  bool operator==(const Ended&) const = default;
};

using Event = std::variant<Ready, Stopped, StopAsked, Left, Granted, Ended>;
Bytes encode(const Event& event);
/// Decodes untrusted bytes. Throws CorruptMessage.
Event decode(ByteView bytes);

/// The departure that matters to the most ranks: the earliest one and, among departures in the same round, one with a
/// reason.
class Departure {
 public:
  void apply(const Left& event);
  const std::optional<Left>& get() const { return first_; }

 private:
  std::optional<Left> first_;
};

/// The names of readers in error messages.
struct ReaderNames {
  std::vector<int> ranks;
  std::vector<std::string> hosts = {};  ///< host of each reader; empty if all are on one host
  int units = 1;                        ///< units per round
  std::string remedy = {};              ///< Source::difference_remedy()

  /// Returns "rank 2 on host b".
  std::string of(int reader) const;
};

/// The lead's knowledge and decisions. apply() accepts events in any order between readers, but in order for each
/// reader. Decisions are monotonic: granted() never decreases, and an end never changes.
class Lead {
 public:
  explicit Lead(ReaderNames readers, bool reads_ahead = true)
      : readers_(std::move(readers)),
        reads_ahead_(reads_ahead),
        ready_(readers_.ranks.size()),
        stopped_(readers_.ranks.size()) {}

  void apply(const Ready& event);
  void apply(const Stopped& event);
  void apply(const StopAsked& event);
  void apply(const Left& event) { departure_.apply(event); }

  /// Returns the number of rounds that every reader has sent, at most up to the end.
  std::int64_t granted() const;
  const std::optional<FeedEnd>& end() const { return end_; }
  const std::optional<Left>& departure() const { return departure_.get(); }

 private:
  /// Decides the end, if possible. The earliest of the readers' stops and of the differences between readers becomes
  /// the end once every reader has sent all rounds before it. A stop that a rank has asked for becomes the end once the
  /// rounds that every reader has sent complete a step and include those that may have been under way.
  void settle();
  /// The first reports about a round, which the reports of other readers must match.
  struct FirstReport {
    int reader = 0;
    std::uint64_t division = 0;
    std::map<int, std::pair<int, UnitDigest>> units;  ///< by unit number: the first reader and its digest
  };

  /// Returns the position of the reader that has sent the fewest rounds.
  const FeedPosition& slowest() const;
  /// Ends the feed before this round if another reader has divided the step differently, which would lose or repeat
  /// samples, or has read different content for a unit.
  void compare(const Ready& event);
  /// `other`: the reader that `event` contradicts.
  void end_before(const Ready& event, int other, ErrorKind error, std::string message);

  ReaderNames readers_;
  bool reads_ahead_;
  std::vector<FeedPosition> ready_;
  std::vector<std::optional<FeedEnd>> stopped_;
  std::map<std::int64_t, FirstReport> reported_;  ///< for each round that not every reader has sent
  std::optional<FeedEnd> difference_;             ///< the end caused by the first difference between readers
  std::optional<StopAsked> stop_asked_;           ///< the first
  std::int64_t min_rounds_ = 0;                   ///< minimum number of rounds before that stop
  std::optional<FeedEnd> end_;
  Departure departure_;
};

/// The rounds that one rank may deliver to its caller.
class Follower {
 public:
  /// `needs_grants`: whether the feed has several readers.
  explicit Follower(bool needs_grants) : needs_grants_(needs_grants) {}

  void apply(const Granted& event);
  void apply(const Ended& event) { end_ = event.end; }
  void apply(const Left& event) { departure_.apply(event); }
  /// Records that the caller received the batch of at(). Requires may_receive().
  void advance(bool ends_step) { at_.advance(ends_step); }

  const FeedPosition& at() const { return at_; }
  bool may_receive() const {
    return !is_abandoned() && !finished() &&
           (end_ ? at_.round < end_->at.round : !needs_grants_ || at_.round < granted_);
  }
  bool finished() const { return end_ && at_.round >= end_->at.round; }
  /// Returns whether asking for the round of at() is an error because a rank has left before it. A departure without a
  /// reason is not an error if the feed ends at that point anyway.
  bool is_abandoned() const {
    const auto& left = departure_.get();
    return left && at_.round >= left->at.round && (!finished() || !left->reason.empty());
  }
  const std::optional<FeedEnd>& end() const { return end_; }
  const std::optional<Left>& departure() const { return departure_.get(); }

 private:
  bool needs_grants_;
  std::int64_t granted_ = 0;
  FeedPosition at_;
  std::optional<FeedEnd> end_;
  Departure departure_;
};

}  // namespace feed_protocol
}  // namespace levada
