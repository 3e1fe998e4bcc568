// What has to move: from a source layout to a target layout, as a list of moves. Pure values: no I/O, nothing running;
// the same on every rank without talking.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/mesh.h"
#include "levada/plan/layout.h"
#include "levada/plan/region.h"

namespace levada {

/// The segments of a field, and the fields of the batch that say so.
struct FieldSegments {
  std::shared_ptr<const Segments> boundaries;  ///< null if the rows are not packed
  std::string path;                            ///< "cu_seqlens"
  std::string differs_from;                    ///< another field that says otherwise, or empty
  explicit operator bool() const { return boundaries != nullptr; }
  bool operator==(const FieldSegments&) const = default;
};

/// One leaf as a planner sees it. A leaf that is no tensor has no bits and no extents, and moves whole.
struct Field {
  std::string path;
  DType dtype;
  Shape shape;
  /// Of a batch of packed sequences: Zigzag then divides each segment of a row, not the row.
  FieldSegments segments = {};
  bool is_tensor() const { return dtype.bits != 0; }
  bool operator==(const Field&) const = default;
};

/// Bytes of the tensors of a batch with these fields.
std::uint64_t bytes_of_batch(const std::vector<Field>& fields);

/// Who reads: `one` rank of the world; `all` (each for itself, nothing crosses); `host`: the first rank of each host;
/// `spread`: one rank at each coordinate along the data axes, as many on each host as the mesh allows;
/// or axes: the first rank at each coordinate along them.
struct Readers {
  enum class Kind : std::uint8_t { one, all, host, spread, axes };
  Kind kind = Kind::one;
  std::vector<std::string> axes = {};

  /// "one", "all", "host", "spread", "dp", "dp,pp". Throws InvalidArgument.
  static Readers parse(std::string_view text);
  std::string to_string() const;
  /// Returns the reader of each rank. `host_of` is each rank's host, and needed only for `host` and `spread`. "dp" is
  /// all data axes. Throws InvalidArgument: an axis that the mesh lacks, unless Mesh::may_lack(); hosts that are not
  /// known.
  std::vector<int> of(const Mesh& mesh, std::span<const int> host_of = {}) const;
};

/// How batches fall to the ranks along the data axes: `deal` whole ones, batch t*W+d to coordinate d in round t;
/// `split` one global batch along dim 0.
enum class Divide : std::uint8_t { deal, split };

/// "deal", "split".
std::string_view to_string(Divide divide);
/// The inverse of to_string(). Throws InvalidArgument, saying that `what` must be one of them.
Divide parse_divide(std::string_view word, std::string_view what = "divide");

/// The ranks to which one reader sends one and the same message a step: they want the same of the same batch.
struct Audience {
  int from = 0;
  std::vector<int> to = {};  ///< ascending
  int unit = 0;  ///< which batch of the round: the coordinate along the data axes when dealing, 0 when splitting
  bool operator==(const Audience&) const = default;
};

/// Carry `region` of field number `field` from one rank to a set of ranks.
struct Move {
  int field = 0;
  int audience = 0;
  Region region = {};
  std::uint64_t bytes = 0;  ///< of one copy
  bool operator==(const Move&) const = default;
};

/// How a step's batches get from their readers to all ranks. Moves are sorted by audience, then field; each field that
/// an audience needs is one move to all of its ranks, also a plain value or an empty tensor, of 0 bytes.
struct Plan {
  Mesh mesh;
  std::vector<Field> fields;
  std::vector<Audience> audiences;
  std::vector<Move> moves;

  /// Moves of one audience, in the order of fields: one message.
  std::span<const Move> moves_of(int audience) const;
  /// Bytes that leave their readers, each multicast counted once.
  std::uint64_t bytes_sent() const;
  /// Bytes that arrive, counted at each rank.
  std::uint64_t bytes_delivered() const;
  /// Bytes that arrive at each rank.
  std::vector<std::uint64_t> bytes_by_rank() const;
  /// Bytes that a reader holds for one step at most: its batches and its messages.
  std::uint64_t peak_bytes() const;

  /// For people: one row an audience and field, then the sums; lists of ranks as ranges.
  std::string to_table() const;
  /// One JSON object: mesh, ranks, fields [{path, dtype, shape}], audiences [{from, to, unit}], moves [{audience,
  /// field, region, bytes}] (a region is a list of [begin, end] a dimension), bytes_sent, bytes_delivered,
  /// bytes_if_whole (were every rank given its batch whole), edges [{from, to, bytes}], peak_bytes.
  std::string to_json() const;
  bool operator==(const Plan&) const = default;
};

/// Returns what the lengths of a packed row's segments must be multiples of, so that the layout can divide the field at
/// `path` along its Zigzag placements; 1 if it has none.
std::int64_t segment_divisor(const Layout& layout, const Mesh& mesh, std::string_view path);

struct FanOutOptions {
  Readers readers = {};
  Divide divide = Divide::deal;
  std::vector<int> host_of = {};  ///< each rank's host; needed for Readers::Kind::host and spread alone
  /// Splitting: the samples of a global batch that has fewer than `part_samples` for each part; 0: it is full. Fields
  /// of this extent give the first parts full, the next one what is left, and the others none. All others must divide.
  std::int64_t short_samples = 0;
  std::int64_t part_samples = 0;  ///< in a full part; needed for a short batch alone
};

/// The audiences of a feed, which depend on mesh and layout alone, not on what a batch holds: every rank is in exactly
/// one. Ordered by reader, then unit, then first rank. Linear in the number of ranks. Throws InvalidArgument as
/// Layout::check() does.
std::vector<Audience> fan_out_audiences(const Layout& layout, const Mesh& mesh, const FanOutOptions& options);

/// Those of one reader, and of one reader and unit: a part of what fan_out_audiences() gave, empty if there are none.
std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from);
std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from, int unit);

/// The plan of one step. `fields`: those of one batch as its reader holds it (dealing: one of the dealt ones;
/// splitting: the global one). Throws InvalidArgument: a required field that is missing; a dimension that a field
/// lacks; an extent that does not divide, naming field, extent and divisor; a field that is to be cut though its
/// elements do not begin on bytes.
Plan plan_fan_out(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                  const FanOutOptions& options);

/// The moves alone, for audiences already known: what a reader calls for audiences_of(all, itself, unit) when a batch
/// of another shape comes along. Move::audience counts within `audiences`. Costs as much as these audiences and the
/// layout have entries, however large the mesh; with segments, as much as these have entries.
std::vector<Move> plan_unit(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                            std::span<const Audience> audiences, const FanOutOptions& options);

}  // namespace levada
