#include "levada/feed/context_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/feed/labels.h"
#include "levada/plan/context_plan.h"
#include "levada/plan/plan.h"
#include "levada/transfer/portion.h"
#include "levada/transfer/segments.h"

namespace levada {
namespace {

constexpr std::string_view axis = "cp";

bool is_along_context(const Placement& placement) {
  return axis_of(placement) == axis;
}

/// Divides placements into those along cp and the others.
void divide(const std::vector<Placement>& all, std::vector<Placement>& along, std::vector<Placement>& others) {
  for (const Placement& placement : all) {
    if (!is_along_context(placement)) {
      others.push_back(placement);
    } else if (std::holds_alternative<Zigzag>(placement)) {
      along.push_back(placement);
    } else if (!std::holds_alternative<Replicate>(placement)) {
      throw InvalidArgument(fmt::format("max_cp cuts sequences by zigzag, and the layout has {}; use zigzag(cp,dim)",
                                        to_string(placement)));
    }
  }
}

Mesh with_context_as_data(const Mesh& mesh) {
  if (!mesh.has_axis(axis)) return mesh;
  auto names = mesh.data_axes();
  names.emplace_back(axis);
  return Mesh(mesh.axes(), names);
}

}  // namespace

std::optional<ContextFeed> context_feed_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options) {
  if (!options.balance || options.balance->max_cp == 1) return {};
  check_balance(*options.balance);
  layout.check(mesh);
  using Kind = Readers::Kind;
  if (options.readers.kind == Kind::spread || options.readers.kind == Kind::axes) {
    throw InvalidArgument(
        fmt::format("with max_cp a reader reads for ranks that change from step to step: readers must be one, host or "
                    "all, got {}",
                    options.readers.to_string()));
  }
  ContextFeed feed{.mesh = with_context_as_data(mesh), .layout = layout, .cuts = {}};
  check_context(feed.mesh.data_size(), {.max_tokens = options.balance->max_tokens, .max_cp = options.balance->max_cp});
  bool cuts_any = false;
  for (Layout::Rule& rule : feed.layout.rules) {
    Layout::Rule cut{.pattern = rule.pattern, .placements = {}, .required = false};
    std::vector<Placement> others;
    divide(rule.placements, cut.placements, others);
    rule.placements = std::move(others);
    cuts_any = cuts_any || !cut.placements.empty();
    feed.cuts.rules.push_back(std::move(cut));
  }
  std::vector<Placement> others;
  divide(layout.otherwise, feed.cuts.otherwise, others);
  feed.layout.otherwise = std::move(others);
  if (cuts_any || !feed.cuts.otherwise.empty()) return feed;
  throw InvalidArgument(
      fmt::format("max_cp cuts the fields that the layout cuts along cp, and layout {:.40} has none; give zigzag(cp,1) "
                  "to the fields "
                  "of a sequence",
                  layout.name));
}

Tree context_part(const Tree& row, const Layout& cuts, int size, int index, Memory& memory) {
  FlatTree part = flatten(row);
  const Mesh block({{std::string(axis), size}});
  const PackedSegments segments(part);
  const auto fields = fields_of(part, segments);
  expect_shifted_labels(part, cuts, block);
  const std::vector<Audience> audience{{.to = {index}}};
  for (const Move& move : plan_unit(fields, cuts, block, audience, {})) {
    const auto& field = fields[static_cast<std::size_t>(move.field)];
    if (!field.is_tensor() || move.region.covers(field.shape)) continue;
    if (!field.segments) {
      throw InvalidArgument(fmt::format(
          "{} has no cu_seqlens, so that the documents in its row cannot be cut one by one; max_cp takes packed rows",
          field.path));
    }
    auto& leaf = part.leaves[static_cast<std::size_t>(move.field)];
    auto cut = memory.empty(field.dtype, move.region.shape());
    copy_region(std::get<Tensor>(leaf), move.region, cut.mutable_bytes().data());
    leaf = std::move(cut);
  }
  part.schema = part.schema.without_aliases();
  return unflatten(part);
}

}  // namespace levada
