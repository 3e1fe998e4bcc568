// How far all ranks may go, and where they stop: the feed's decisions as values, without I/O.
//
// The lead is the first reader. Readers report to it how many rounds they have sent (Ready), where their data ended and
// why (Stopped); ranks ask it to stop all of them (StopAsked). It decides how many rounds may be used (granted) and,
// once, the end. A single reader needs no grants: a round reaches all of its audiences or none, so what has arrived may
// be used.
//
// A step is a round, or several where it has micro-batches: then an end that a rank asks for comes behind the last of
// them. Rounds order everything; the step is counted beside them, for people.
//
// Readers of the same unit must send the same content. Each Ready has digests of what its reader has read of such
// units. The lead compares them before it grants the round, so that no rank is given content that differs between
// readers.
//
// A rank that leaves the feed reports that too (Left), and the lead forwards it to all ranks. Each rank decides by
// itself what it means: ranks that leave at the same step never notice, a rank that asks for that step gets an error.
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

/// How far a feed has come: so many rounds, the next of which is micro-batch `micro` of step `step`.
struct FeedPosition {
  std::int64_t round = 0;
  std::int64_t step = 0;   ///< so many whole steps are behind it
  std::int64_t micro = 0;  ///< 0 between two steps

  /// Passes over a round, which ends a step or does not.
  void advance(bool ends_step) {
    ++round;
    step += ends_step ? 1 : 0;
    micro = ends_step ? 0 : micro + 1;
  }
  bool operator==(const FeedPosition&) const = default;
};

/// "step 3", or within a step "step 3, micro-batch 1".
std::string to_string(const FeedPosition& position);

/// Why a feed ended. `left` and `abandoned` are one rank's own view; every other end is the same on every rank.
struct FeedEnd {
  enum class Cause : std::uint8_t {
    exhausted = 1,  ///< no further round of data
    steps = 2,      ///< as many steps as were asked for
    stopped = 3,    ///< a rank asked all ranks to stop
    failed = 4,     ///< a reader threw
    left = 5,       ///< this rank closed its feed
    abandoned = 6,  ///< another rank left, and this one could not go on without it
  };
  Cause cause = Cause::exhausted;
  FeedPosition at;  ///< behind the last round that was handed out
  int rank = 0;     ///< the reader that came to the end or failed, the rank that asked for the stop or left
  ErrorKind error = ErrorKind::source;
  std::string message;  ///< of the error
  bool operator==(const FeedEnd&) const = default;
};

/// "exhausted", "steps", "stopped", "failed", "left", "abandoned".
std::string_view to_string(FeedEnd::Cause cause);

namespace feed_protocol {

/// The content of a field, as one reader has read it.
struct FieldDigest {
  std::string path;
  std::uint64_t digest = 0;
  bool operator==(const FieldDigest&) const = default;
};
/// The content of a unit of a round, as one reader has read it.
struct UnitDigest {
  int unit = 0;
  std::uint64_t structure = 0;  ///< Schema::fingerprint()
  std::vector<FieldDigest> fields;
  bool operator==(const UnitDigest&) const = default;
};
/// Reader number `reader` has sent all rounds before this position. It reports each round.
struct Ready {
  int reader = 0;
  FeedPosition at;
  std::uint64_t division = 0;     ///< MicroBatch::division of the last round; 0 without balance
  std::vector<UnitDigest> units;  ///< of the last round: the units that other readers read, too
  bool operator==(const Ready&) const = default;
};
/// Reader number `reader` will send no more than end.at.round rounds.
struct Stopped {
  int reader = 0;
  FeedEnd end;
  bool operator==(const Stopped&) const = default;
};
/// A rank asks for an end on all ranks.
struct StopAsked {
  int rank = 0;
  bool operator==(const StopAsked&) const = default;
};
/// A rank has left at this position, and will not use another round.
struct Left {
  int rank = 0;
  FeedPosition at;
  std::string reason;  ///< the exception that made it leave; empty if none did
  bool operator==(const Left&) const = default;
};
/// The lead's word: so many rounds may be used.
struct Granted {
  std::int64_t rounds = 0;
  bool operator==(const Granted&) const = default;
};
/// The lead's last word.
struct Ended {
  FeedEnd end;
  bool operator==(const Ended&) const = default;
};

using Event = std::variant<Ready, Stopped, StopAsked, Left, Granted, Ended>;
Bytes encode(const Event& event);
/// Reads bytes that may lie. Throws CorruptMessage.
Event decode(ByteView bytes);

/// Of the ranks that have left, the one that concerns most others: the earliest, and of those of one round one that
/// gives a reason.
class Departure {
 public:
  void apply(const Left& event);
  const std::optional<Left>& get() const { return first_; }

 private:
  std::optional<Left> first_;
};

/// What an error says about readers.
struct ReaderNames {
  std::vector<int> ranks;
  std::vector<std::string> hosts = {};  ///< of each; empty if all are on one host
  int units = 1;                        ///< of a round
  std::string remedy = {};              ///< Source::difference_remedy()

  /// "rank 2 on host b".
  std::string of(int reader) const;
};

/// What the lead knows and decides. apply() takes events in any order of the readers, each reader's own in order;
/// decisions only grow: granted() never falls, an end is never changed.
class Lead {
 public:
  explicit Lead(ReaderNames readers)
      : readers_(std::move(readers)), ready_(readers_.ranks.size()), stopped_(readers_.ranks.size()) {}

  void apply(const Ready& event);
  void apply(const Stopped& event);
  void apply(const StopAsked& event);
  void apply(const Left& event) { departure_.apply(event); }

  /// Rounds that every reader has sent, up to the end.
  std::int64_t granted() const;
  const std::optional<FeedEnd>& end() const { return end_; }
  const std::optional<Left>& departure() const { return departure_.get(); }

 private:
  /// The readers' stops, and the difference between them, become the end once every reader has come as far as the
  /// nearest of them; the stop that a rank
  /// has asked for, once what every reader has sent ends a step.
  void settle();
  /// What the first readers of a round have reported, which the others must report as well.
  struct Reported {
    int reader = 0;
    std::uint64_t division = 0;
    std::map<int, std::pair<int, UnitDigest>> units;  ///< by number: the first reader, and its digest
  };

  /// How far the reader is that has sent the least.
  const FeedPosition& slowest() const;
  /// Ends the feed before the round if another reader has divided its step differently, which would lose or repeat
  /// samples, or has read other content of a unit.
  void compare(const Ready& event);
  /// `other`: the reader that `event` contradicts.
  void end_before(const Ready& event, int other, ErrorKind error, std::string message);

  ReaderNames readers_;
  std::vector<FeedPosition> ready_;
  std::vector<std::optional<FeedEnd>> stopped_;
  std::map<std::int64_t, Reported> reported_;  ///< of each round that not every reader has sent
  std::optional<FeedEnd> difference_;          ///< the end that the first difference between readers asks for
  std::optional<StopAsked> stop_asked_;        ///< the first
  std::optional<FeedEnd> end_;
  Departure departure_;
};

/// What one rank may hand to its caller.
class Follower {
 public:
  /// `needs_grants`: whether there are several readers.
  explicit Follower(bool needs_grants) : needs_grants_(needs_grants) {}

  void apply(const Granted& event);
  void apply(const Ended& event) { end_ = event.end; }
  void apply(const Left& event) { departure_.apply(event); }
  /// The caller was given the batch of at(), which ends a step or does not. Only when may_receive().
  void advance(bool ends_step) { at_.advance(ends_step); }

  const FeedPosition& at() const { return at_; }
  bool may_receive() const {
    return !is_abandoned() && !finished() &&
           (end_ ? at_.round < end_->at.round : !needs_grants_ || at_.round < granted_);
  }
  bool finished() const { return end_ && at_.round >= end_->at.round; }
  /// Returns whether asking for the round of at() is an error, because a rank has left before it. That a rank left
  /// without a reason where the feed ends anyway is not an error.
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
