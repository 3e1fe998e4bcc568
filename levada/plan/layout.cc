#include "levada/plan/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/tensor/shape.h"

namespace levada {
namespace {

/// Checks the placements of one rule, which `where` names, and records the axes that they mention.
class RuleCheck {
 public:
  RuleCheck(const Layout& layout, const Mesh& mesh) : layout_(layout), mesh_(mesh) {}

  void check(const std::vector<Placement>& placements, const std::string& where) {
    std::set<std::string, std::less<>> named, placed;
    for (const Placement& placement : placements) {
      const std::string_view axis = axis_of(placement);
      const auto meant = mesh_.axes_meant_by(axis);
      if (meant.empty()) check_absent(placement, where);
      if (!named.emplace(axis).second) fail("{} has two placements on axis {}; keep one", where, axis);
      for (const auto& each : meant) {
        if (!placed.insert(each).second) fail("{} has two placements on axis {}; keep one", where, each);
        mentioned_.insert(each);
      }
      if (const auto* shard = std::get_if<Shard>(&placement)) check_dim(shard->dim, placement, where);
      if (const auto* zigzag = std::get_if<Zigzag>(&placement)) check_dim(zigzag->dim, placement, where);
      if (const auto* stages = std::get_if<Stages>(&placement)) check_stages(*stages, where);
    }
  }

  /// Throws for an axis that no placement mentions and that is not known to share data or to divide it.
  void check_all_axes_decided() const {
    for (const auto& axis : mesh_.undecided_axes()) {
      if (mentioned_.contains(axis)) continue;
      fail(
          "axis {} of the mesh '{}' may divide data or share it, and nothing says which ({}); name the mesh's data "
          "axes "
          "(data_axes=, --data-axes), or say replicate({}) in the layout if its ranks want the same",
          axis, mesh_.to_string(), describe_axis_roles(), axis);
    }
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidArgument(
        printable(fmt::format("layout {:.40}: {}", layout_.name, fmt::format(format, std::forward<Args>(args)...))));
  }

 private:
  void check_absent(const Placement& placement, const std::string& where) const {
    const auto axis = axis_of(placement);
    if (mesh_.may_lack(axis)) return;
    fail("{} has {}, but the mesh has no axis {} (it is '{}'); {}", where, to_string(placement), axis,
         mesh_.to_string(),
         role_of(axis) == AxisRole::data ? "write dp, which stands for all its data axes"
                                         : "add the axis or change the layout");
  }

  void check_dim(int dim, const Placement& placement, const std::string& where) const {
    if (dim < 0 || dim >= static_cast<int>(Shape::max_rank)) {
      fail("{} has {}, but dimensions are counted from 0 to {}", where, to_string(placement), Shape::max_rank - 1);
    }
  }

  void check_stages(const Stages& stages, const std::string& where) const {
    for (const std::string& name : stages.names) {
      if (name == "first" || name == "last") continue;
      const auto found = layout_.stages.find(name);
      if (found == layout_.stages.end()) {
        fail("{} has {}, but no stage {} is defined; add it to stages, as in \"stages\": {{\"{}\": [1]}}", where,
             to_string(Placement(stages)), name, name);
      }
      for (const int stage : found->second) {
        if (stage >= 0 && stage < mesh_.span(stages.axis).size()) continue;
        fail("stage {} has coordinate {}, but {} has {} stage(s), counted from 0", name, stage, stages.axis,
             mesh_.span(stages.axis).size());
      }
    }
  }

  const Layout& layout_;
  const Mesh& mesh_;
  std::set<std::string, std::less<>> mentioned_;
};

}  // namespace

bool matches(std::string_view pattern, std::string_view path) {
  // The position of the last '*', and how much it has matched so far: on a mismatch it matches one character more.
  std::size_t p = 0, s = 0, star = std::string_view::npos, resume = 0;
  while (s < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = s;
    } else if (p < pattern.size() && pattern[p] == path[s]) {
      ++p;
      ++s;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      s = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const std::vector<Placement>& Layout::placements_of(std::string_view path) const {
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return matches(r.pattern, path); });
  return rule == rules.end() ? otherwise : rule->placements;
}

void Layout::check(const Mesh& mesh) const {
  RuleCheck rule_check(*this, mesh);
  std::unordered_set<std::string_view> patterns;
  for (const Rule& rule : rules) {
    if (!patterns.insert(rule.pattern).second) rule_check.fail("two rules for '{:.60}'; keep one", rule.pattern);
    rule_check.check(rule.placements, fmt::format("field '{:.60}'", rule.pattern));
  }
  rule_check.check(otherwise, "'otherwise'");
  for (const auto& [stage, coordinates] : stages) {
    if (stage == "first" || stage == "last") rule_check.fail("stage {} is built in and cannot be defined", stage);
    if (!is_name(stage)) {
      rule_check.fail("'{:.40}' is not a valid stage name; use letters, digits and _, a letter first", stage);
    }
  }
  rule_check.check_all_axes_decided();
}

namespace layouts {

Layout gpt(const GptOptions& options) {
  const bool has_mtp = !options.mtp_stages.empty() && !options.broadcast_all_keys;
  const auto field = [&](std::string name, int sequence_dim, std::vector<std::string> stages, bool required = true) {
    Layout::Rule rule{std::move(name), {Shard{"dp", 0}, Zigzag{"cp", sequence_dim}, Replicate{"tp"}}, required};
    if (has_mtp) stages.emplace_back("mtp");
    if (!options.broadcast_all_keys) rule.placements.push_back(Stages{"pp", std::move(stages)});
    return rule;
  };
  Layout layout;
  layout.name = "gpt";
  layout.rules = {field("tokens", 1, {"first"}), field("labels", 1, {"last"}), field("loss_mask", 1, {"last"}),
                  field("position_ids", 1, {"first"}),
                  field("attention_mask", 2, {"first", "last"}, options.attention_mask)};
  // Attention over packed sequences needs these on every stage, for the whole sequence.
  for (const char* name : {"cu_seqlens", "max_seqlen"}) {
    layout.rules.push_back({name, {Shard{"dp", 0}, Replicate{"cp"}, Replicate{"tp"}, Replicate{"pp"}}, false});
  }
  if (has_mtp) layout.stages["mtp"] = options.mtp_stages;
  return layout;
}

Layout data_parallel() {
  Layout layout;
  layout.name = "data_parallel";
  layout.otherwise = {Shard{"dp", 0}};
  return layout;
}

}  // namespace layouts
}  // namespace levada
