// Feeds in which each micro-batch has its own number of context-parallel ranks.
#pragma once

#include "levada/feed/feed.h"
#include "levada/mesh/mesh.h"
#include "levada/plan/layout.h"
#include "levada/sources/source.h"
#include "levada/tree/tree.h"

namespace levada {

/// The mesh and the layout of such a feed. Readers cut sequences themselves, so the feed treats each dp x cp rank as a
/// data-parallel rank with separate batches.
struct ContextFeed {
  Mesh mesh;      ///< with cp among the data axes
  Layout layout;  ///< without placements along cp
  Layout cuts;    ///< only the placements along cp
};

/// Returns the mesh with cp among its data axes, if it has one.
Mesh with_cp_as_data(const Mesh& mesh);

/// Returns nothing if the steps are not balanced with max_cp > 1. Throws InvalidArgument if mesh, layout and options do
/// not allow it: a placement along cp other than Zigzag, or no Zigzag along cp; another cut of the same dimension;
/// readers at coordinates of the mesh; a max_cp that does not divide the dp x cp ranks.
std::optional<ContextFeed> context_feed_of(const Mesh& mesh, const Layout& layout, const FeedOptions& options);

/// Throws InvalidArgument if the samples of the source are rows of several documents, or not padded to a multiple of
/// 2 * max_cp.
void check_sequences(const Source& source, int max_cp);

/// Throws InvalidArgument if context_part() would throw for a part of a row.
void check_row(const Tree& row, const Layout& cuts, int max_cp);

/// Returns part `index` of a packed row that `size` ranks share: the fields that `cuts` divides, cut segment by segment
/// into `memory`, and all other fields whole. Throws InvalidArgument, as plan_fan_out() does, for a field that cannot
/// be cut, and for a row without segments.
Tree context_part(const Tree& row, const Layout& cuts, int size, int index, Memory& memory);

}  // namespace levada
