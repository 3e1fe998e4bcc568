// A layout compiled for one mesh: the needs of each rank by each rule, as arithmetic on rank numbers. Private to this
// module.
#pragma once

#include <cstdint>
#include <vector>

#include "levada/mesh/mesh.h"
#include "levada/plan/layout.h"
#include "levada/plan/plan.h"

namespace levada {

/// One cut of a field by Shard or Zigzag, along one or more axes with more than one rank.
struct Cut {
  AxisSpan axis;
  std::size_t dim = 0;
  bool zigzag = false;
  bool shares_batch = false;  ///< splits a global batch: a Shard of dim 0 along all data axes together
  Placement placement;        ///< for error messages

  /// Returns the number by which the extent must be divisible.
  std::int64_t divisor() const { return zigzag ? 2 * std::int64_t{axis.size()} : axis.size(); }
};

/// The needs of ranks by rule: the layout's rules in order, then `otherwise`. Keeps no references.
class Needs {
 public:
  /// Throws as Layout::check() does, and if dealing whole batches contradicts a placement along a data axis.
  Needs(const Layout& layout, const Mesh& mesh, Divide divide);

  /// Returns the index of the rank's batch in a round.
  int unit_of(int rank) const { return unit_axis_.of(rank); }
  /// Returns a number that is equal for two ranks if and only if, given the same batch, they need the same parts by
  /// every rule.
  std::uint64_t class_of(int rank) const;

  const std::vector<Cut>& cuts(std::size_t rule) const { return rules_[rule].cuts; }
  /// Returns whether the rank's stage needs the fields that the rule places.
  bool holds(std::size_t rule, int rank) const { return stage_sets_[stage_set_[stage_of(rank)]].holds[rule]; }

 private:
  struct RuleNeeds {
    std::vector<Cut> cuts;
    std::vector<std::pair<AxisSpan, std::vector<bool>>> stages;  ///< coordinates of an axis that hold it
  };
  /// Stages that hold the same rules, and the axes along which those rules cut.
  struct StageSet {
    std::vector<bool> holds;
    std::vector<AxisSpan> cut_axes;
  };

  RuleNeeds compile(const std::vector<Placement>& placements, const Layout& layout, const Mesh& mesh,
                    Divide divide) const;
  void find_stage_sets();
  StageSet stage_set_at(int rank) const;
  /// Returns a rank's coordinates along all axes that have stages, as one number.
  std::size_t stage_of(int rank) const;

  AxisSpan unit_axis_;  ///< the data axes if batches are dealt
  int ranks_ = 1;
  std::vector<RuleNeeds> rules_;
  std::vector<AxisSpan> stage_axes_;
  std::vector<std::size_t> stage_set_;  ///< by stage_of()
  std::vector<StageSet> stage_sets_;
};

}  // namespace levada
