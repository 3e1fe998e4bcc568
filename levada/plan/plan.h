// The data that must move from a source layout to a target layout, as a list of moves. Plans are pure values, computed
// without I/O, and the same on every rank without communication.
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

/// The segments of a field, and the fields of the batch that define them.
struct FieldSegments {
  std::shared_ptr<const Segments> boundaries;  ///< null if the rows are not packed
  std::string path;                            ///< "cu_seqlens"
  std::string differs_from;                    ///< path of a field that contradicts it, or empty
  explicit operator bool() const { return boundaries != nullptr; }
  bool operator==(const FieldSegments&) const = default;
};

/// A leaf of a batch as the planner sees it. A leaf that is not a tensor has no bits and no extents, and moves whole.
struct Field {
  std::string path;
  DType dtype;
  Shape shape;
  /// Set for packed sequences: Zigzag then divides each segment of a row instead of the row.
  FieldSegments segments = {};
  bool is_tensor() const { return dtype.bits != 0; }
  bool operator==(const Field&) const = default;
};

/// Returns the total size of the tensors in a batch with these fields.
std::uint64_t bytes_of_batch(const std::vector<Field>& fields);

/// The ranks that read. `one`: rank 0. `all`: each rank for itself, so nothing is sent. `host`: the first rank of each
/// host. `spread`: one rank at each coordinate along the data axes, distributed over hosts as evenly as the mesh
/// allows. `axes`: the first rank at each coordinate along the given axes.
struct Readers {
  enum class Kind : std::uint8_t { one, all, host, spread, axes };
  Kind kind = Kind::one;
  std::vector<std::string> axes = {};

  /// Parses "one", "all", "host", "spread", "dp" or "dp,pp". Throws InvalidArgument.
  static Readers parse(std::string_view text);
  std::string to_string() const;
  /// Returns the reader of each rank. `host_of` is each rank's host, and needed only for `host` and `spread`. "dp"
  /// means all data axes. Throws InvalidArgument: an axis that the mesh lacks, unless Mesh::may_lack(); unknown hosts.
  std::vector<int> of(const Mesh& mesh, std::span<const int> host_of = {}) const;
};

/// The assignment of batches to ranks along the data axes, which have W coordinates. `deal` assigns whole batches:
/// batch t*W+d to coordinate d in round t. `split` divides one global batch along dim 0.
enum class Divide : std::uint8_t { deal, split };

/// Returns "deal" or "split".
std::string_view to_string(Divide divide);
/// Parses the text of to_string(). Throws InvalidArgument, naming the argument `what`.
Divide parse_divide(std::string_view word, std::string_view what = "divide");

/// The ranks to which a reader sends the same message in a step, because they need the same parts of the same batch.
struct Audience {
  int from = 0;
  std::vector<int> to = {};  ///< ascending
  int unit = 0;  ///< index of the batch in the round: the coordinate along the data axes when dealing, 0 when splitting
  bool operator==(const Audience&) const = default;
};

/// Carries `region` of field number `field` from one rank to a set of ranks.
struct Move {
  int field = 0;
  int audience = 0;
  Region region = {};
  std::uint64_t bytes = 0;  ///< size of one copy
  bool operator==(const Move&) const = default;
};

/// The moves that take a step's batches from their readers to all ranks. Moves are sorted by audience, then field. Each
/// field that an audience needs is one move to all of its ranks; a plain value or an empty tensor is a move of 0 bytes.
struct Plan {
  Mesh mesh;
  std::vector<Field> fields;
  std::vector<Audience> audiences;
  std::vector<Move> moves;

  /// Returns the moves of one audience, in the order of fields. Together they are one message.
  std::span<const Move> moves_of(int audience) const;
  /// Returns the bytes that readers send. Each multicast counts once.
  std::uint64_t bytes_sent() const;
  /// Returns the bytes that ranks receive. Each multicast counts once per receiver.
  std::uint64_t bytes_delivered() const;
  /// Returns the bytes that arrive at each rank.
  std::vector<std::uint64_t> bytes_by_rank() const;
  /// Returns the maximum that a reader holds for one step: its batches and its messages.
  std::uint64_t peak_bytes() const;

  /// Returns a readable table: one row per audience and field, then the sums, with ranks as ranges.
  std::string to_table() const;
  /// Returns one JSON object: mesh, ranks, fields [{path, dtype, shape}], audiences [{from, to, unit}], moves
  /// [{audience, field, region, bytes}] (a region is a list of [begin, end] per dimension), bytes_sent,
  /// bytes_delivered, bytes_if_whole (if every rank received its whole batch), edges [{from, to, bytes}], peak_bytes.
  std::string to_json() const;
  bool operator==(const Plan&) const = default;
};

/// Returns the number by which the segment lengths of packed rows must be divisible, so that the layout can divide the
/// field at `path` along its Zigzag placements; 1 if it has none.
std::int64_t segment_divisor(const Layout& layout, const Mesh& mesh, std::string_view path);

struct FanOutOptions {
  Readers readers = {};
  Divide divide = Divide::deal;
  std::vector<int> host_of = {};  ///< host of each rank; needed only for Readers::Kind::host and spread
  /// With Divide::split, the number of samples in a global batch that has fewer than `part_samples` for each part; 0:
  /// it is full. Fields of this extent fill the first parts; the next part gets the rest, and the others nothing. All
  /// other fields must divide evenly.
  std::int64_t short_samples = 0;
  std::int64_t part_samples = 0;  ///< samples in a full part; needed only for a short batch
};

/// Returns the audiences of a feed, which depend only on mesh and layout, not on the content of batches. Every rank is
/// in exactly one. Ordered by reader, then unit, then first rank. Linear in the number of ranks. Throws InvalidArgument
/// as Layout::check() does.
std::vector<Audience> fan_out_audiences(const Layout& layout, const Mesh& mesh, const FanOutOptions& options);

/// Returns the audiences of one reader, or of one reader and unit: a part of the result of fan_out_audiences(), empty
/// if there are none.
std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from);
std::span<const Audience> audiences_of(std::span<const Audience> audiences, int from, int unit);

/// Returns the plan of one step. `fields`: those of one batch as its reader holds it (dealing: one of the dealt
/// batches; splitting: the global batch). Throws InvalidArgument: a required field that is missing; a dimension that a
/// field lacks; an extent that does not divide, naming field, extent and divisor; a cut field whose elements do not
/// begin on byte boundaries.
Plan plan_fan_out(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                  const FanOutOptions& options);

/// Returns only the moves, for known audiences. A reader calls it for audiences_of(all, itself, unit) when a batch of
/// another shape arrives. Move::audience is an index into `audiences`. The time is linear in the entries of these
/// audiences and the layout, and in those of the segments, if any; it does not depend on the size of the mesh.
std::vector<Move> plan_unit(const std::vector<Field>& fields, const Layout& layout, const Mesh& mesh,
                            std::span<const Audience> audiences, const FanOutOptions& options);

}  // namespace levada
