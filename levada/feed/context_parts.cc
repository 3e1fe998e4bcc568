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

/// Divides placements into those along cp and all others. Omits placements along axes that the mesh lacks.
void divide(const std::vector<Placement>& all, const Mesh& mesh, std::vector<Placement>& along,
            std::vector<Placement>& others) {
  for (const Placement& placement : all) {
    if (axis_of(placement) != axis) {
      if (!mesh.axes_meant_by(axis_of(placement)).empty()) others.push_back(placement);
    } else if (std::holds_alternative<Zigzag>(placement)) {
      along.push_back(placement);
    } else if (!std::holds_alternative<Replicate>(placement)) {
      throw InvalidArgument(fmt::format("max_cp cuts sequences by zigzag, but the layout has {}; use zigzag(cp,dim)",
                                        to_string(placement)));
    }
  }
  for (const Placement& placement : along) {
    const int dim = std::get<Zigzag>(placement).dim;
    const auto cuts_dim = [&](const Placement& other) {
      const auto* shard = std::get_if<Shard>(&other);
      const auto* zigzag = std::get_if<Zigzag>(&other);
      return (shard != nullptr && shard->dim == dim) || (zigzag != nullptr && zigzag->dim == dim);
    };
    const auto other = std::ranges::find_if(others, cuts_dim);
    if (other == others.end()) continue;
    throw InvalidArgument(fmt::format("max_cp cuts dim {} by {}, so {} cannot cut it as well", dim,
                                      to_string(placement), to_string(*other)));
  }
}

/// The moves of one part of a row.
struct RowCut {
  FlatTree row;
  std::vector<Field> fields;
  std::vector<Move> moves;
};

RowCut cut_row(const Tree& tree, const Layout& cuts, int size, int index) {
  RowCut cut{.row = flatten(tree), .fields = {}, .moves = {}};
  const Mesh block({{std::string(axis), size}});
  cut.fields = fields_of(cut.row, PackedSegments(cut.row));
  expect_shifted_labels(cut.row, cuts, block);
  const std::vector<Audience> audience{{.to = {index}}};
  cut.moves = plan_unit(cut.fields, cuts, block, audience, {});
  std::erase_if(cut.moves, [&](const Move& move) {
    const auto& field = cut.fields[static_cast<std::size_t>(move.field)];
    return !field.is_tensor() || move.region.covers(field.shape);
  });
  for (const Move& move : cut.moves) {
    const auto& field = cut.fields[static_cast<std::size_t>(move.field)];
    if (field.segments) continue;
    throw InvalidArgument(fmt::format(
        "{} has no cu_seqlens, so the documents in its row cannot be cut separately; max_cp requires packed rows",
        field.path));
  }
  return cut;
}

}  // namespace

Mesh with_cp_as_data(const Mesh& mesh) {
  if (!mesh.has_axis(axis)) return mesh;
  auto names = mesh.data_axes();
  names.emplace_back(axis);
  return Mesh(mesh.axes(), names);
}

void check_sequences(const Source& source, int max_cp) {
  if (!source.has_single_sequences()) {
    throw InvalidArgument(
        "max_cp chooses a number of ranks for each document, but the samples are rows of several: pack documents "
        "(packing=\"documents\", --pack documents)");
  }
  const auto multiple = source.segment_multiple();
  if (multiple == 0 || multiple % (2 * max_cp) == 0) return;
  throw InvalidArgument(
      fmt::format("max_cp={} cuts each document into up to {} chunks, and documents are padded to multiples of {}: "
                  "choose a multiple of {} (pad_to=, --pad-to)",
                  max_cp, 2 * max_cp, multiple, 2 * max_cp));
}

std::optional<ContextFeed> context_feed_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options) {
  if (!options.balance || options.balance->max_cp == 1) return {};
  check_balance(*options.balance);
  layout.check(mesh);
  using Kind = Readers::Kind;
  if (options.readers.kind == Kind::spread || options.readers.kind == Kind::axes) {
    throw InvalidArgument(
        fmt::format("with max_cp the ranks of a reader change from step to step: readers must be one, host or "
                    "all, got {}",
                    options.readers.to_string()));
  }
  ContextFeed feed{.mesh = with_cp_as_data(mesh), .layout = layout, .cuts = {}};
  check_context(feed.mesh.data_size(), {.max_tokens = options.balance->max_tokens, .max_cp = options.balance->max_cp});
  bool cuts_any = false;
  for (Layout::Rule& rule : feed.layout.rules) {
    Layout::Rule cut{.pattern = rule.pattern, .placements = {}, .required = false};
    std::vector<Placement> others;
    divide(rule.placements, mesh, cut.placements, others);
    rule.placements = std::move(others);
    cuts_any = cuts_any || !cut.placements.empty();
    feed.cuts.rules.push_back(std::move(cut));
  }
  std::vector<Placement> others;
  divide(layout.otherwise, mesh, feed.cuts.otherwise, others);
  feed.layout.otherwise = std::move(others);
  if (cuts_any || !feed.cuts.otherwise.empty()) return feed;
  throw InvalidArgument(
      fmt::format("max_cp cuts the fields that the layout cuts along cp, but layout {:.40} has none; add zigzag(cp,1) "
                  "to the fields of a sequence",
                  layout.name));
}

void check_row(const Tree& row, const Layout& cuts, int max_cp) {
  cut_row(row, cuts, max_cp, 0);
}

Tree context_part(const Tree& row, const Layout& cuts, int size, int index, Memory& memory) {
  auto [part, fields, moves] = cut_row(row, cuts, size, index);
  std::size_t bytes = 0;
  for (const Move& move : moves) bytes += move.bytes;
  memory.reserve(bytes);
  for (const Move& move : moves) {
    auto& leaf = part.leaves[static_cast<std::size_t>(move.field)];
    auto cut = memory.empty(fields[static_cast<std::size_t>(move.field)].dtype, move.region.shape());
    copy_region(std::get<Tensor>(leaf), move.region, cut.mutable_bytes().data());
    leaf = std::move(cut);
  }
  part.schema = part.schema.without_aliases();
  return unflatten(part);
}

}  // namespace levada
