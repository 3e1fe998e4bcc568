// A barrier at the end of an epoch: all ranks end at the first item at which any of them ends or fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/base/fields.h"
#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/failure.h"

namespace levada::pipeline {

/// The known future of the items of one or more ranks. All of these ranks have the items before `until`; at `until`,
/// one of them ends or fails, or the future is still unknown.
struct Lookahead {
  enum class Kind : std::uint8_t { there = 1, ended = 2, failed = 3 };
  std::int64_t until = 0;
  Kind kind = Kind::there;
  std::int32_t failed_rank = 0;    ///< if failed
  std::optional<Failure> failure;  ///< if failed
  static auto fields(auto& self) { return std::tie(self.until, self.kind, self.failed_rank, self.failure); }
  bool operator==(const Lookahead&) const = default;

  /// Returns whether this determines the item's outcome.
  bool knows(std::int64_t item) const { return until > item || kind != Kind::there; }
};
constexpr Lookahead::Kind last_of(Lookahead::Kind) {
  return Lookahead::Kind::failed;
}
/// Returns the earlier of the two, which is valid for the ranks of both. At the same item, a lookahead that may still
/// be extended precedes a failure, a lower rank's failure precedes a higher rank's, and a failure precedes an end.
const Lookahead& earlier(const Lookahead& a, const Lookahead& b);

/// One rank's part in computing a minimum over all ranks along a tree of groups. Each rank reports to its group; the
/// first rank of each group reports the group's minimum to a group of such first ranks, and so on. The topmost group's
/// result is sent back down the same way. A rank therefore sends and receives about group_size messages per level, and
/// a job with a single group forwards nothing. A value.
class EndTree {
 public:
  static constexpr int group_size = 16;
  EndTree(int rank, int ranks, int group = group_size);

  /// A multicast that this rank sends or receives.
  struct Link {
    int level = 0;
    bool is_result = false;  ///< carries the minimum over all ranks; otherwise over `from` and the ranks below it
    int from = 0;
    std::vector<int> to;
    Lookahead current;  ///< received last, or to be sent
    Lookahead sent;
  };
  std::span<const Link> links() const { return links_; }
  bool sends(const Link& link) const { return link.from == rank_; }

  /// Both throw CorruptMessage for a report that contradicts an earlier one.
  void report(Lookahead mine);
  void receive(std::size_t link, Lookahead reported);
  void sent(std::size_t link) { links_[link].sent = links_[link].current; }

  /// The outcome of an item, the same on all ranks: all have it; all end; or, if it failed on some ranks, all fail with
  /// the error of the lowest of those ranks.
  struct Outcome {
    Lookahead::Kind kind = Lookahead::Kind::there;
    int failed_rank = -1;
    const Failure* failure = nullptr;  ///< if failed; valid until the next report
  };
  std::optional<Outcome> outcome(std::int64_t item) const;
  /// Returns whether this rank has sent everything that others need for that item.
  bool has_sent(std::int64_t item) const;

 private:
  void pass_on();

  int rank_;
  int levels_ = 0;
  bool is_top_ = true;
  std::vector<Link> links_;
  Lookahead mine_, of_all_;
};

struct EpochEndBarrierOptions {
  std::string stage = "full_sync";  ///< for messages
  std::string pipeline = {};        ///< identity of the pipeline whose barrier this is; the same on all ranks
  Duration timeout = std::chrono::minutes(30);  ///< limit on the wait for another rank's report
  Duration remind_after = Reminder::after;      ///< delay before a reminder about one wait: see Reminder
  std::function<void()> poll = {};              ///< called periodically while waiting; its exceptions end the wait
};

/// One rank's end of the barrier. A rank reports many items at once, as soon as it has them, and then works on them; by
/// the time it needs the next ones, the others have reported theirs. Ranks may begin at different items; all ranks have
/// the items before those. One thread at a time.
class EpochEndBarrier {
 public:
  /// Collective, but does not wait: all ranks must construct the barriers of a pipeline in the same order.
  EpochEndBarrier(std::shared_ptr<Engine> all_ranks, EpochEndBarrierOptions options);

  /// Does not wait: a report that cannot be sent yet is sent with the next one, or in await(). Throws Timeout.
  void report(const Lookahead& mine);
  /// Waits until all ranks have reported item `item` and this rank's report has been sent, and returns the outcome.
  /// Throws Timeout that names the waiting and the awaited rank, EngineError if a rank left without a report, PeerLost,
  /// and CorruptMessage.
  EndTree::Outcome await(std::int64_t item);

  int rank() const { return engine_->info().rank; }

 private:
  bool send();
  bool receive();
  int rank_missing(std::int64_t item);
  void wait_for(int missing, std::int64_t item, Deadline deadline, Reminder& reminder);

  std::shared_ptr<Engine> job_;  ///< for the status board
  std::shared_ptr<Engine> engine_;
  EpochEndBarrierOptions options_;
  EndTree tree_;
  std::vector<std::shared_ptr<Channel>> channels_;  ///< by link
  std::vector<bool> ended_;                         ///< by link
};

}  // namespace levada::pipeline
