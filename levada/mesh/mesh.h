// The ranks of a job as named axes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levada {

/// Whether `text` can name an axis or a stage: letters, digits and '_', no digit first.
bool is_name(std::string_view text);

struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// Ranks 0..size()-1 laid out row-major over the axes: the last axis varies fastest. A value, never empty of ranks.
class Mesh {
 public:
  /// One rank, no axes.
  Mesh() = default;
  /// Throws InvalidArgument: an empty, ill-formed or repeated name, a size below 1, more than 2^31-1 ranks.
  explicit Mesh(std::vector<Axis> axes);
  /// "dp=2,tp=2"; "" is one rank. Throws InvalidArgument, naming the part that is wrong.
  static Mesh parse(std::string_view text);

  int size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  bool has_axis(std::string_view name) const;
  /// Ranks along an axis; 1 for one that the mesh does not have.
  int axis_size(std::string_view name) const;
  /// Ranks between neighbours along an axis; size() for one that the mesh does not have.
  int axis_stride(std::string_view name) const;

  /// Position of `rank` along an axis; 0 for one that the mesh does not have. Throws InvalidArgument for no such rank.
  int coordinate(int rank, std::string_view axis) const;
  /// One entry an axis.
  std::vector<int> coordinates(int rank) const;
  /// The inverse. Throws InvalidArgument out of range.
  int rank_at(const std::vector<int>& coordinates) const;
  /// The ranks that differ from `rank` at most along the axes named, ascending; axes that the mesh does not have count
  /// as size 1.
  std::vector<int> group(int rank, const std::vector<std::string>& axes) const;

  /// As parse() takes it.
  std::string to_string() const;
  /// "dp0 tp1": the coordinates of a rank for people; "rank 0" where there are no axes.
  std::string describe(int rank) const;
  bool operator==(const Mesh&) const = default;

 private:
  std::vector<Axis> axes_;
  int size_ = 1;
};

}  // namespace levada
