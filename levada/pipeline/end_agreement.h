// Ranks that go through their items together: all end where the first of them does, and fail with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/engine/collect.h"
#include "levada/engine/engine.h"
#include "levada/pipeline/failure.h"
#include "levada/pipeline/fields.h"

namespace levada::pipeline {

/// What a rank knows of its items of the epoch: those before `until` are there, and then it ends, or fails, or more may
/// come.
struct Lookahead {
  enum class Kind : std::uint8_t { there = 1, ended = 2, failed = 3 };
  std::int64_t until = 0;
  Kind kind = Kind::there;
  std::optional<Failure> failure;  ///< where failed
  static auto fields(auto& self) { return std::tie(self.until, self.kind, self.failure); }
  bool operator==(const Lookahead&) const = default;
};
constexpr Lookahead::Kind last_of(Lookahead::Kind) {
  return Lookahead::Kind::failed;
}

/// What all ranks have said: a value.
class CommonEnd {
 public:
  explicit CommonEnd(int ranks) : said_(static_cast<std::size_t>(ranks)), at_there_until_(ranks) {}

  /// Throws CorruptMessage for what takes back what `rank` said before.
  void apply(int rank, Lookahead said);
  /// What becomes of an item, the same on all ranks: it is there on all; or all end; or, where it failed on any, all
  /// fail as the lowest rank that did. Empty until all have said.
  struct Outcome {
    Lookahead::Kind kind = Lookahead::Kind::there;
    int failed_rank = -1;
    const Failure* failure = nullptr;  ///< where failed; as long as nothing is applied
  };
  std::optional<Outcome> outcome(std::int64_t item) const;
  /// Whether `rank` has said what becomes of its item.
  bool knows(int rank, std::int64_t item) const;

 private:
  std::vector<Lookahead> said_;
  std::int64_t there_until_ = 0;  ///< on all
  std::int64_t at_there_until_;   ///< ranks that have said no more than that
};

struct EndAgreementOptions {
  std::string stage = "full_sync";              ///< for people
  Duration timeout = std::chrono::minutes(30);  ///< for what another rank says
  Duration remind_after = Reminder::after;      ///< of one wait: as Reminder does
  std::function<void()> poll = {};              ///< called now and then while waiting; what it throws ends the wait
};

/// One rank's end of it. A rank says of many of its items at once what it knows as soon as it knows, and then does its
/// work; by the time when it wants them, the others have said the same of theirs. Ranks may begin at different items,
/// those before which are there on all. One thread at a time.
class EndAgreement {
 public:
  /// Collective, but waits for nobody: all ranks make theirs in the same order.
  EndAgreement(std::shared_ptr<Engine> all_ranks, EndAgreementOptions options);

  /// Waits for nobody: what finds no room is told with what is said next, or in await(). Throws Timeout.
  void say(const Lookahead& mine);
  /// What becomes of item `item`, once all have said, and have been told what this rank says of it. Throws Timeout,
  /// which tells who waits for whom; EngineError for a rank that left without a word; PeerLost; CorruptMessage.
  CommonEnd::Outcome await(std::int64_t item);

  int rank() const { return engine_->info().rank; }

 private:
  struct Other {
    int rank;
    std::shared_ptr<Channel> channel;
    bool ended = false;
  };
  bool tell();
  bool hear();
  std::vector<const Other*> silent(std::int64_t item);
  void wait_for(const std::vector<const Other*>& silent, std::int64_t item, Deadline deadline, Reminder& reminder);

  std::shared_ptr<Engine> job_;  ///< shows what this rank waits for
  std::shared_ptr<Engine> engine_;
  EndAgreementOptions options_;
  std::shared_ptr<Channel> own_;
  std::vector<Other> others_;
  CommonEnd common_;
  CommonEnd told_{1};  ///< what all others have been sent of this rank's
  std::optional<Lookahead> untold_;
};

}  // namespace levada::pipeline
