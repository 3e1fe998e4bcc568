// The ranks of a job as named axes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levada/mesh/axis_span.h"

namespace levada {

/// Whether ranks along an axis share batches. Batches differ along the data axes: dp, dp_replicate, dp_shard, fsdp,
/// data, ddp. They are shared along tp, cp, pp and sp. The role of ep is unknown, because ranks along it share batches
/// only in some programs.
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

  /// Constructs a mesh of one rank, without axes.
  Mesh() = default;
  /// `data_axes` are the axes along which batches differ; by default, role_of() determines them. Throws InvalidArgument
  /// for an empty, ill-formed or repeated name, a size below 1, more than 2^31-1 ranks, and a data axis that is not
  /// among `axes`.
  explicit Mesh(std::vector<Axis> axes, const std::optional<Names>& data_axes = {});
  /// Parses text such as "dp=2,tp=2"; "" is one rank. Throws InvalidArgument that names the invalid part.
  static Mesh parse(std::string_view text, const std::optional<Names>& data_axes = {});
  /// Constructs a mesh of `axes` sorted by `order`, which names them from the fastest to the slowest, as in
  /// "tp-cp-ep-dp-pp". "dp" in `order` means all data axes that `order` does not name, in the order given. Throws
  /// InvalidArgument if `order` leaves out an axis or names one twice.
  static Mesh ordered(std::vector<Axis> axes, std::string_view order, const std::optional<Names>& data_axes = {});
  /// Megatron-LM's order, with sp next to cp.
  static constexpr std::string_view default_order = "tp-sp-cp-ep-dp-pp";

  int size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  /// Returns the data axes, in the order of axes().
  const Names& data_axes() const { return data_axes_; }
  /// Returns the number of ranks along all data axes together.
  int data_size() const { return data_span_.size(); }
  /// Returns the position of `rank` along all data axes together. Throws InvalidArgument if there is no such rank.
  int data_coordinate(int rank) const;
  const AxisSpan& data_span() const { return data_span_; }
  /// Returns the axes of unknown role if the data axes were not given. It is undecided whether ranks along them share
  /// batches.
  const Names& undecided_axes() const { return undecided_axes_; }

  /// Returns the axes that a placement's axis name means: all data axes for "dp", otherwise the axis of that name, or
  /// none if the mesh lacks it.
  Names axes_meant_by(std::string_view name) const;
  /// Returns the AxisSpan of the axes that `name` means.
  AxisSpan span(std::string_view name) const;
  /// Returns whether a placement may name this axis although the mesh lacks it; the axis then counts as having one
  /// rank. That holds for axes that share data, and for data axes unless the mesh divides data under another name.
  bool may_lack(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// Returns the number of ranks along an axis, or 1 if the mesh lacks it.
  int axis_size(std::string_view name) const;
  /// Returns the distance between neighboring ranks along an axis, or size() if the mesh lacks it.
  int axis_stride(std::string_view name) const;

  /// Returns the position of `rank` along an axis, or 0 if the mesh lacks it. Throws InvalidArgument if there is no
  /// such rank.
  int coordinate(int rank, std::string_view axis) const;
  /// Returns one coordinate per axis.
  std::vector<int> coordinates(int rank) const;
  /// Returns the rank at these coordinates, as the inverse of coordinates(). Throws InvalidArgument if they are out of
  /// range.
  int rank_at(const std::vector<int>& coordinates) const;
  /// Returns the ranks that differ from `rank` along the given axes only, including `rank`, in ascending order. Axes
  /// that the mesh lacks count as having size 1.
  std::vector<int> group(int rank, const std::vector<std::string>& axes) const;

  /// Returns text that parse() accepts. It does not include `data_axes`.
  std::string to_string() const;
  /// Describes a rank by its coordinates, for messages: "dp0 tp1", or "rank 0" if there are no axes.
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
