// Ranks that go through their items together: all end where the first of them does, and fail with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/fields.h"

namespace levada::pipeline {

/// What is known of the items of a rank, or of several ranks: those before `until` are there on all, and then one of
/// them ends, or fails, or more may come.
struct Lookahead {
  enum class Kind : std::uint8_t { there = 1, ended = 2, failed = 3 };
  std::int64_t until = 0;
  Kind kind = Kind::there;
  std::int32_t failed_rank = 0;    ///< where failed
  std::optional<Failure> failure;  ///< where failed
  static auto fields(auto& self) { return std::tie(self.until, self.kind, self.failed_rank, self.failure); }
  bool operator==(const Lookahead&) const = default;

  /// Whether it says what becomes of that item.
  bool knows(std::int64_t item) const { return until > item || kind != Kind::there; }
};
constexpr Lookahead::Kind last_of(Lookahead::Kind) {
  return Lookahead::Kind::failed;
}
/// Returns what both together know: the earlier of the two. At one item, one of which more is to be told goes before a
/// failure, that of the lowest rank before others, and a failure before an end.
const Lookahead& earlier(const Lookahead& a, const Lookahead& b);

/// What one rank has been told, and passes on: a minimum over all ranks, in groups of groups. Each rank tells its group
/// what it knows of itself; the first of each group tells a group of such first ones what is known of its own, and so
/// on. What the topmost group knows comes back the same way. So a rank sends and receives some group_size messages a
/// level, and in a job of one group there is nothing to pass on. A value.
class EndTree {
 public:
  static constexpr int group_size = 16;
  EndTree(int rank, int ranks, int group = group_size);

  /// A multicast that this rank sends or receives.
  struct Link {
    int level = 0;
    bool is_result = false;  ///< what is known of all ranks; else what `from` knows of itself and of those below it
    int from = 0;
    std::vector<int> to;
    Lookahead current;  ///< what has been received, or is to be sent
    Lookahead sent;
  };
  std::span<const Link> links() const { return links_; }
  bool sends(const Link& link) const { return link.from == rank_; }

  /// Throw CorruptMessage for what takes back what was said before.
  void say(Lookahead mine);
  void receive(std::size_t link, Lookahead said);
  void sent(std::size_t link) { links_[link].sent = links_[link].current; }

  /// What becomes of an item, the same on all ranks: it is there on all; or all end; or, where it failed on any, all
  /// fail as the lowest rank that did. Empty until all have said.
  struct Outcome {
    Lookahead::Kind kind = Lookahead::Kind::there;
    int failed_rank = -1;
    const Failure* failure = nullptr;  ///< where failed; as long as nothing is applied
  };
  std::optional<Outcome> outcome(std::int64_t item) const;
  /// Whether all that others need of this rank for that item has been sent.
  bool has_told(std::int64_t item) const;

 private:
  void pass_on();

  int rank_;
  int levels_ = 0;
  bool is_top_ = true;
  std::vector<Link> links_;
  Lookahead mine_, of_all_;
};

struct EpochEndBarrierOptions {
  std::string stage = "full_sync";              ///< for people
  Duration timeout = std::chrono::minutes(30);  ///< for what another rank says
  Duration remind_after = Reminder::after;      ///< of one wait: as Reminder does
  std::function<void()> poll = {};              ///< called now and then while waiting; what it throws ends the wait
};

/// One rank's end of it. A rank says of many of its items at once what it knows as soon as it knows, and then does its
/// work; by the time when it wants them, the others have said the same of theirs. Ranks may begin at different items,
/// those before which are there on all. One thread at a time.
class EpochEndBarrier {
 public:
  /// Collective, but waits for nobody: all ranks make theirs in the same order.
  EpochEndBarrier(std::shared_ptr<Engine> all_ranks, EpochEndBarrierOptions options);

  /// Waits for nobody: what finds no room is told with what is said next, or in await(). Throws Timeout.
  void say(const Lookahead& mine);
  /// What becomes of item `item`, once all have said, and have been told what this rank says of it. Throws Timeout,
  /// which tells who waits for whom; EngineError for a rank that left without a word; PeerLost; CorruptMessage.
  EndTree::Outcome await(std::int64_t item);

  int rank() const { return engine_->info().rank; }

 private:
  bool tell();
  bool receive();
  int rank_missing(std::int64_t item);
  void wait_for(int missing, std::int64_t item, Deadline deadline, Reminder& reminder);

  std::shared_ptr<Engine> job_;  ///< shows what this rank waits for
  std::shared_ptr<Engine> engine_;
  EpochEndBarrierOptions options_;
  EndTree tree_;
  std::vector<std::shared_ptr<Channel>> channels_;  ///< by link
  std::vector<bool> ended_;                         ///< by link
};

}  // namespace levada::pipeline
