#include "levada/plan/needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "levada/base/error.h"

namespace levada {
namespace {

AxisSpan span_of(const Mesh& mesh, std::string_view axis) {
  return {mesh.axis_stride(axis), mesh.axis_size(axis)};
}

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

void check_dealt(const Placement& placement, const Layout& layout) {
  if (axis_of(placement) != data_axis || std::holds_alternative<Replicate>(placement)) return;
  if (std::holds_alternative<Stages>(placement)) return;
  throw InvalidArgument(fmt::format(
      "layout {:.40} has {}, but whole batches are dealt along {}, which is shard({},0); use that, or split a global "
      "batch",
      layout.name, to_string(placement), data_axis, data_axis));
}

}  // namespace

Needs::Needs(const Layout& layout, const Mesh& mesh, Divide divide) : ranks_(mesh.size()) {
  layout.check(mesh);
  if (divide == Divide::deal) unit_axis_ = span_of(mesh, data_axis);
  for (const Layout::Rule& rule : layout.rules) rules_.push_back(compile(rule.placements, layout, mesh, divide));
  rules_.push_back(compile(layout.otherwise, layout, mesh, divide));
  find_stage_sets();
}

Needs::RuleNeeds Needs::compile(const std::vector<Placement>& placements, const Layout& layout, const Mesh& mesh,
                                Divide divide) const {
  RuleNeeds rule;
  for (const Placement& placement : placements) {
    if (divide == Divide::deal && placement == Placement(Shard{std::string(data_axis), 0})) continue;
    if (divide == Divide::deal) check_dealt(placement, layout);
    const AxisSpan axis = span_of(mesh, axis_of(placement));
    if (axis.size == 1) continue;
    if (const auto* shard = std::get_if<Shard>(&placement)) {
      rule.cuts.push_back({axis, static_cast<std::size_t>(shard->dim), false, placement});
    } else if (const auto* zigzag = std::get_if<Zigzag>(&placement)) {
      rule.cuts.push_back({axis, static_cast<std::size_t>(zigzag->dim), true, placement});
    } else if (const auto* stages = std::get_if<Stages>(&placement)) {
      rule.stages.emplace_back(axis, stages_that_hold(*stages, layout, axis.size));
    }
  }
  return rule;
}

void Needs::find_stage_sets() {
  std::size_t stage_count = 1;
  for (const RuleNeeds& rule : rules_) {
    for (const auto& [axis, holds] : rule.stages) add_once(stage_axes_, axis);
  }
  for (const AxisSpan& axis : stage_axes_) stage_count *= static_cast<std::size_t>(axis.size);

  std::map<std::vector<bool>, std::size_t> known;
  stage_set_.reserve(stage_count);
  for (std::size_t stage = 0; stage < stage_count; ++stage) {
    StageSet set = stage_set_at(stage);
    const auto [entry, is_new] = known.try_emplace(set.holds, stage_sets_.size());
    stage_set_.push_back(entry->second);
    if (is_new) stage_sets_.push_back(std::move(set));
  }
}

Needs::StageSet Needs::stage_set_at(std::size_t stage) const {
  int rank = 0;  // the first rank of that stage
  for (auto axis = stage_axes_.rbegin(); axis != stage_axes_.rend(); ++axis) {
    rank += static_cast<int>(stage % static_cast<std::size_t>(axis->size)) * axis->stride;
    stage /= static_cast<std::size_t>(axis->size);
  }
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
    stage = stage * static_cast<std::size_t>(axis.size) + static_cast<std::size_t>(axis.of(rank));
  }
  return stage;
}

std::uint64_t Needs::class_of(int rank) const {
  const std::size_t set = stage_set_[stage_of(rank)];
  std::uint64_t place = 0;
  for (const AxisSpan& axis : stage_sets_[set].cut_axes) {
    place += static_cast<std::uint64_t>(axis.of(rank)) * static_cast<std::uint64_t>(axis.stride);
  }
  return set * static_cast<std::uint64_t>(ranks_) + place;
}

}  // namespace levada
