#include "levada/plan/needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "levada/base/error.h"

namespace levada {
namespace {

void add_once(std::vector<AxisSpan>& spans, const AxisSpan& span) {
  if (std::find(spans.begin(), spans.end(), span) == spans.end()) spans.push_back(span);
}

std::vector<bool> stages_that_hold(const Stages& stages, const Layout& layout, int size) {
  std::vector<bool> holds(static_cast<std::size_t>(size), false);
  for (const std::string& name : stages.names) {
    if (name == "first") holds.front() = true;
    else if (name == "last") holds.back() = true;
    else {
      for (const int stage : layout.stages.at(name)) holds[static_cast<std::size_t>(stage)] = true;
    }
  }
  return holds;
}

/// Returns whether the placement is only along data axes, named one by one or all together.
bool is_along_data(const Placement& placement, const Mesh& mesh) {
  const auto axes = mesh.axes_meant_by(axis_of(placement));
  return !axes.empty() &&
         std::find(mesh.data_axes().begin(), mesh.data_axes().end(), axes.front()) != mesh.data_axes().end();
}

/// Throws for a placement that contradicts dealing, which has the effect of Shard{data axis, 0}.
void check_dealt(const Placement& placement, const Layout& layout) {
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard != nullptr && shard->dim == 0) return;
  throw InvalidArgument(fmt::format(
      "layout {:.40} has {}, but whole batches are dealt along the data axes, which is shard(dp,0); use that, or split "
      "a global batch",
      layout.name, to_string(placement)));
}

}  // namespace

Needs::Needs(const Layout& layout, const Mesh& mesh, Divide divide) : ranks_(mesh.size()) {
  layout.check(mesh);
  if (divide == Divide::deal) unit_axis_ = mesh.data_span();
  for (const Layout::Rule& rule : layout.rules) rules_.push_back(compile(rule.placements, layout, mesh, divide));
  rules_.push_back(compile(layout.otherwise, layout, mesh, divide));
  find_stage_sets();
}

Needs::RuleNeeds Needs::compile(const std::vector<Placement>& placements, const Layout& layout, const Mesh& mesh,
                                Divide divide) const {
  RuleNeeds rule;
  for (const Placement& placement : placements) {
    const AxisSpan axis = mesh.span(axis_of(placement));
    const bool is_stages = std::holds_alternative<Stages>(placement);
    if (divide == Divide::deal && !is_stages && is_along_data(placement, mesh)) {
      if (axis.size() > 1) check_dealt(placement, layout);
      continue;
    }
    if (axis.size() == 1) continue;
    if (const auto* shard = std::get_if<Shard>(&placement)) {
      const bool shares_batch = shard->dim == 0 && axis == mesh.data_span();
      rule.cuts.push_back({axis, static_cast<std::size_t>(shard->dim), false, shares_batch, placement});
    } else if (const auto* zigzag = std::get_if<Zigzag>(&placement)) {
      rule.cuts.push_back({axis, static_cast<std::size_t>(zigzag->dim), true, false, placement});
    } else if (const auto* stages = std::get_if<Stages>(&placement)) {
      rule.stages.emplace_back(axis, stages_that_hold(*stages, layout, axis.size()));
    }
  }
  return rule;
}

void Needs::find_stage_sets() {
  std::size_t stage_count = 1;
  for (const RuleNeeds& rule : rules_) {
    for (const auto& [axis, holds] : rule.stages) add_once(stage_axes_, axis);
  }
  for (const AxisSpan& axis : stage_axes_) stage_count *= static_cast<std::size_t>(axis.size());

  // Axes may overlap, so not every combination of their coordinates is a stage.
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::map<std::vector<bool>, std::size_t> known;
  stage_set_.assign(stage_count, none);
  for (int rank = 0; rank < ranks_; ++rank) {
    std::size_t& number = stage_set_[stage_of(rank)];
    if (number != none) continue;
    StageSet set = stage_set_at(rank);
    const auto [entry, is_new] = known.try_emplace(set.holds, stage_sets_.size());
    number = entry->second;
    if (is_new) stage_sets_.push_back(std::move(set));
  }
}

Needs::StageSet Needs::stage_set_at(int rank) const {
  StageSet set;
  for (const RuleNeeds& rule : rules_) {
    const bool held = std::all_of(rule.stages.begin(), rule.stages.end(), [&](const auto& entry) {
      return entry.second[static_cast<std::size_t>(entry.first.of(rank))];
    });
    set.holds.push_back(held);
    if (!held) continue;
    for (const Cut& cut : rule.cuts) add_once(set.cut_axes, cut.axis);
  }
  return set;
}

std::size_t Needs::stage_of(int rank) const {
  std::size_t stage = 0;
  for (const AxisSpan& axis : stage_axes_) {
    stage = stage * static_cast<std::size_t>(axis.size()) + static_cast<std::size_t>(axis.of(rank));
  }
  return stage;
}

std::uint64_t Needs::class_of(int rank) const {
  const std::size_t set = stage_set_[stage_of(rank)];
  // A number in mixed radix, because the axes may overlap, as all data axes and one of them do.
  std::uint64_t part = 0;
  for (const AxisSpan& axis : stage_sets_[set].cut_axes) {
    part = part * static_cast<std::uint64_t>(axis.size()) + static_cast<std::uint64_t>(axis.of(rank));
  }
  return part * stage_sets_.size() + set;
}

}  // namespace levada
