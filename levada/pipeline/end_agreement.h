// Ranks that go through their items together: all end where the first of them does, and fail with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/pipeline/failure.h"

namespace levada::pipeline {

/// What a rank knows of its item number `item` of the epoch.
struct Foresight {
  enum class Kind : std::uint8_t { there = 1, ended = 2, failed = 3 };
  std::int64_t item = 0;
  Kind kind = Kind::there;
  std::optional<Failure> failure;  ///< where failed
  bool operator==(const Foresight&) const = default;
};
Bytes encode(const Foresight& foresight);
/// Reads bytes that may lie. Throws CorruptMessage.
Foresight decode_foresight(ByteView bytes);

struct EndAgreementOptions {
  std::string stage = "full_sync";               ///< for people
  Duration timeout = std::chrono::seconds(300);  ///< for what another rank says
  std::function<void()> poll = {};               ///< called now and then while waiting; what it throws ends the wait
};

/// One rank's end of it. A rank says of each of its items what it knows as soon as it knows, and then does its work; by
/// the time when it wants the item, the others have said the same of theirs. One thread at a time.
class EndAgreement {
 public:
  /// Collective, but waits for nobody: all ranks make theirs in the same order.
  EndAgreement(std::shared_ptr<Engine> all_ranks, EndAgreementOptions options);

  /// Of one item after the other. Throws Timeout.
  void say(const Foresight& mine);
  /// What becomes of the item that was said of last, the same on all ranks, once all have said: it is there on all; or
  /// all end; or, where it failed on any, all fail as the lowest rank that did. Throws Timeout, which tells who waits
  /// for whom; EngineError for a rank that left without a word; InvalidArgument for one that is at another item;
  /// PeerLost; CorruptMessage.
  Foresight await();

  int rank() const { return engine_->info().rank; }
  /// Of the failure that await() gave last.
  int failed_rank() const { return failed_rank_; }

 private:
  struct Other {
    int rank;
    std::shared_ptr<Channel> channel;
  };
  void hear(const Other& other, const Foresight& said);
  bool hear_all(std::vector<const Other*>& silent);
  void wait_for(const std::vector<const Other*>& silent, Deadline deadline);

  std::shared_ptr<Engine> engine_;
  EndAgreementOptions options_;
  std::shared_ptr<Channel> own_;
  std::vector<Other> others_;
  Foresight said_, outcome_;
  int failed_rank_ = -1;
};

}  // namespace levada::pipeline
