// Reads a reader's batches, round after round, and makes messages of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "levada/feed/wiring.h"
#include "levada/sources/source.h"
#include "levada/transfer/outbox.h"

namespace levada {

struct FeedOptions;

/// One thread at a time.
class FeedRounds {
 public:
  FeedRounds(const FeedWiring& wiring, const Mesh& mesh, const Layout& layout, std::shared_ptr<Source> source,
             const FeedOptions& options);

  /// A message for one of the reader's audiences.
  struct Outgoing {
    Channel* channel = nullptr;
    Packed packed;
  };

  /// Reads round number `round` whole, all of this reader's batches of it. Empty, with why in ended(), when there is
  /// none: the data or the steps are over, or the source threw.
  std::vector<Outgoing> read(std::int64_t round, const AllocateBlock& allocate);
  const std::optional<FeedEnd>& ended() const { return ended_; }

  const Source& source() const { return *source_; }

 private:
  /// What is sent of batches of one structure and shape.
  struct UnitPlan {
    std::vector<std::int64_t> key;
    std::vector<Portion> portions;  ///< one an audience of the unit
  };
  /// One batch of a round: the outboxes of its audiences, and the plans seen so far.
  struct Unit {
    int number = 0;
    std::span<const Audience> audiences;
    std::vector<Outbox> outboxes;
    std::vector<UnitPlan> plans;
    Schema schema;  ///< of the batch before, most likely that of the next
  };

  bool limit_reached(std::int64_t round);
  bool read_unit(Unit& unit, std::int64_t round, const AllocateBlock& allocate, std::vector<Outgoing>& outgoing);
  const UnitPlan& plan_of(Unit& unit, const FlatTree& batch);
  void end(FeedEnd::Cause cause, std::int64_t round);

  const FeedWiring& wiring_;
  Mesh mesh_;
  Layout layout_;
  FanOutOptions fan_out_;
  std::shared_ptr<Source> source_;
  std::int64_t batch_;
  std::int64_t first_;
  std::optional<std::int64_t> steps_;
  std::vector<Unit> units_;
  std::optional<FeedEnd> ended_;
};

}  // namespace levada
