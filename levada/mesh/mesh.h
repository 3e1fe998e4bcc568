// The ranks of a job as named axes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/axis_span.h"

namespace levada {

/// Whether ranks along an axis share batches. Data axes, along which batches differ: dp, dp_replicate, dp_shard, fsdp,
/// data, ddp. Axes that share batches: tp, cp, pp, sp. Unknown: ep, along which ranks share batches in some programs
/// only.
enum class AxisRole { data, shared, unknown };
AxisRole role_of(std::string_view axis);
/// Returns "data axes are dp, ...; axes that share data are tp, ...", for messages.
std::string describe_axis_roles();

/// Returns whether `text` can name an axis or a stage: letters, digits and '_', not beginning with a digit.
bool is_name(std::string_view text);

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// Ranks 0..size()-1, laid out row-major over the axes: the last axis varies fastest. A value type; has at least one
/// rank.
///
/// Ranks that differ along a data axis get different batches; all others share theirs. All data axes together count as
/// one row-major axis, which placements and readers call "dp".
class Mesh {
 public:
  using Names = std::vector<std::string>;

  /// Makes a mesh of one rank, without axes.
  Mesh() = default;
  /// `data_axes`: the axes along which batches differ; default: as in role_of(). Throws InvalidArgument: an empty,
  /// ill-formed or repeated name, a size below 1, more than 2^31-1 ranks, a data axis that is not among `axes`.
  explicit Mesh(std::vector<Axis> axes, const std::optional<Names>& data_axes = {});
  /// Parses, for example, "dp=2,tp=2"; "" is one rank. Throws InvalidArgument, naming the part that is wrong.
  static Mesh parse(std::string_view text, const std::optional<Names>& data_axes = {});
  /// Sorts `axes` by `order`, which names them from the fastest to the slowest: "tp-cp-ep-dp-pp". In it, "dp" stands
  /// for all data axes that `order` does not name, in the order given. Throws InvalidArgument if `order` leaves out an
  /// axis or names one twice.
  static Mesh ordered(std::vector<Axis> axes, std::string_view order, const std::optional<Names>& data_axes = {});
  /// Megatron-LM's order, with sp next to cp.
  static constexpr std::string_view default_order = "tp-sp-cp-ep-dp-pp";

  int size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// In the order of axes().
  const Names& data_axes() const { return data_axes_; }
  /// Returns the number of ranks along all data axes together.
  int data_size() const { return data_span_.size(); }
  /// Returns the position of `rank` along all data axes together. Throws InvalidArgument if there is no such rank.
  int data_coordinate(int rank) const;
  const AxisSpan& data_span() const { return data_span_; }
  /// Returns the axes of unknown role, if the data axes were not given: it is undecided whether their ranks share
  /// batches.
  const Names& undecided_axes() const { return undecided_axes_; }

  /// Returns the axes that a placement's axis name means: all data axes for "dp", else that axis; none if the mesh
  /// lacks it.
  Names axes_meant_by(std::string_view name) const;
  /// Returns the position of these axes in rank numbers.
  AxisSpan span(std::string_view name) const;
  /// Returns whether a placement may name this axis although the mesh lacks it, so that it counts as one rank: an axis
  /// that shares data, or a data axis unless the mesh divides data under another name.
  bool may_lack(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// Returns the number of ranks along an axis; 1 if the mesh lacks it.
  int axis_size(std::string_view name) const;
  /// Returns the distance of neighboring ranks along an axis; size() if the mesh lacks it.
  int axis_stride(std::string_view name) const;

  /// Returns the position of `rank` along an axis; 0 if the mesh lacks it. Throws InvalidArgument if there is no such
  /// rank.
  int coordinate(int rank, std::string_view axis) const;
  /// Returns one coordinate per axis.
  std::vector<int> coordinates(int rank) const;
  /// The inverse of coordinates(). Throws InvalidArgument if out of range.
  int rank_at(const std::vector<int>& coordinates) const;
  /// Returns the ranks that differ from `rank` at most along the given axes, ascending; axes that the mesh lacks count
  /// as size 1.
  std::vector<int> group(int rank, const std::vector<std::string>& axes) const;

  /// Returns text that parse() accepts; it does not include the data axes.
  std::string to_string() const;
  /// Returns the coordinates of a rank for messages: "dp0 tp1", or "rank 0" if there are no axes.
  std::string describe(int rank) const;
  bool operator==(const Mesh&) const = default;

 private:
  void check_rank(int rank) const;

  std::vector<Axis> axes_;
  Names data_axes_;
  Names undecided_axes_;
  AxisSpan data_span_;
  int size_ = 1;
};

}  // namespace levada
