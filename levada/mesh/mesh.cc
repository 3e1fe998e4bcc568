#include "levada/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::array<std::string_view, 6> data_names = {"dp", "dp_replicate", "dp_shard", "fsdp", "data", "ddp"};
constexpr std::array<std::string_view, 4> shared_names = {"tp", "cp", "pp", "sp"};

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Axis* find_axis(const std::vector<Axis>& axes, std::string_view name) {
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
  return found == axes.end() ? nullptr : &*found;
}

int product_of_sizes(const std::vector<Axis>& axes) {
  std::int64_t product = 1;
  for (const Axis& axis : axes) {
    product *= axis.size;
    if (product > std::numeric_limits<int>::max()) {
      throw InvalidArgument(fmt::format("a mesh has at most {} ranks; this one has more with axis {}={}",
                                        std::numeric_limits<int>::max(), axis.name, axis.size));
    }
  }
  return static_cast<int>(product);
}

Axis parse_axis(std::string_view part, std::string_view whole) {
  const auto equals = part.find('=');
  if (equals == std::string_view::npos) {
    throw InvalidArgument(
        printable(fmt::format("mesh '{:.80}': '{:.40}' is not an axis; write name=size, such as dp=2", whole, part)));
  }
  const std::string_view digits = part.substr(equals + 1);
  Axis axis{std::string(part.substr(0, equals)), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), axis.size);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw InvalidArgument(printable(fmt::format(
        "mesh '{:.80}': the size of '{:.40}' is not a whole number below 2^31; write it as in dp=2", whole, part)));
  }
  return axis;
}

/// Returns the data axes of a mesh, in the mesh's order.
Mesh::Names data_axes_of(const std::vector<Axis>& axes, const std::optional<Mesh::Names>& given) {
  if (given) {
    for (auto name = given->begin(); name != given->end(); ++name) {
      if (find_axis(axes, *name) == nullptr) {
        throw InvalidArgument(
            printable(fmt::format("data axis '{:.40}' is not an axis of the mesh; name one of its axes", *name)));
      }
      if (std::find(given->begin(), name, *name) != name) {
        throw InvalidArgument(fmt::format("data axis {} appears twice; name each axis once", *name));
      }
    }
  }
  Mesh::Names names;
  for (const Axis& axis : axes) {
    if (given ? contains(*given, axis.name) : role_of(axis.name) == AxisRole::data) names.push_back(axis.name);
  }
  return names;
}

}  // namespace

AxisRole role_of(std::string_view axis) {
  if (contains(data_names, axis)) return AxisRole::data;
  return contains(shared_names, axis) ? AxisRole::shared : AxisRole::unknown;
}

std::string describe_axis_roles() {
  return fmt::format("data axes are {}; axes that share data are {}", fmt::join(data_names, ", "),
                     fmt::join(shared_names, ", "));
}

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto fits = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !text.empty() && is_letter(text.front()) && std::all_of(text.begin(), text.end(), fits);
}

Mesh::Mesh(std::vector<Axis> axes, const std::optional<Names>& data_axes) : axes_(std::move(axes)) {
  for (auto axis = axes_.begin(); axis != axes_.end(); ++axis) {
    if (!is_name(axis->name)) {
      throw InvalidArgument(printable(fmt::format(
          "'{:.40}' cannot name an axis of a mesh; use letters, digits and _, a letter first", axis->name)));
    }
    if (axis->size < 1) {
      throw InvalidArgument(
          fmt::format("axis {} of a mesh has size {}; it must be at least 1", axis->name, axis->size));
    }
    const auto same_name = [&](const Axis& other) { return other.name == axis->name; };
    if (std::any_of(axes_.begin(), axis, same_name)) {
      throw InvalidArgument(fmt::format("axis {} appears twice in the mesh; name each axis once", axis->name));
    }
  }
  size_ = product_of_sizes(axes_);
  data_axes_ = data_axes_of(axes_, data_axes);
  for (const Axis& axis : axes_) {
    if (!data_axes && axis.size > 1 && role_of(axis.name) == AxisRole::unknown) undecided_axes_.push_back(axis.name);
  }
  for (const std::string& name : data_axes_) data_span_.append(axis_stride(name), axis_size(name));
}

Mesh Mesh::parse(std::string_view text, const std::optional<Names>& data_axes) {
  std::vector<Axis> axes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    axes.push_back(parse_axis(rest.substr(0, comma), text));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) throw InvalidArgument(fmt::format("mesh '{:.80}' ends with a comma; an axis is missing", text));
  }
  return Mesh(std::move(axes), data_axes);
}

Mesh Mesh::ordered(std::vector<Axis> axes, std::string_view order, const std::optional<Names>& data_axes) {
  std::vector<std::string_view> names;
  for (std::string_view rest = order;;) {
    const auto dash = rest.find('-');
    const auto name = rest.substr(0, dash);
    if (!is_name(name)) {
      throw InvalidArgument(fmt::format(
          "order '{:.80}': '{:.40}' is not an axis; name the axes from the fastest to the slowest, as in {}", order,
          name, default_order));
    }
    if (contains(names, name)) {
      throw InvalidArgument(fmt::format("order '{:.80}': {} appears twice; name each axis once", order, name));
    }
    names.push_back(name);
    if (dash == std::string_view::npos) break;
    rest.remove_prefix(dash + 1);
  }
  const auto is_data = [&](const Axis& axis) {
    return data_axes ? contains(*data_axes, axis.name) : role_of(axis.name) == AxisRole::data;
  };
  const auto place_of = [&](const Axis& axis) {
    const bool named = contains(names, axis.name);
    const auto place =
        std::find(names.begin(), names.end(), named || !is_data(axis) ? std::string_view(axis.name) : "dp");
    if (place != names.end()) return place;
    throw InvalidArgument(fmt::format("order '{:.80}' does not place axis {}; add it to the order", order, axis.name));
  };
  std::stable_sort(axes.begin(), axes.end(), [&](const Axis& a, const Axis& b) { return place_of(a) > place_of(b); });
  if (axes.size() == 1) static_cast<void>(place_of(axes.front()));
  return Mesh(std::move(axes), data_axes);
}

Mesh::Names Mesh::axes_meant_by(std::string_view name) const {
  if (name == "dp") return data_axes_;
  return has_axis(name) ? Names{std::string(name)} : Names{};
}

bool Mesh::may_lack(std::string_view name) const {
  const AxisRole role = role_of(name);
  return role == AxisRole::shared || (role == AxisRole::data && data_size() == 1);
}

AxisSpan Mesh::span(std::string_view name) const {
  AxisSpan span;
  for (const std::string& axis : axes_meant_by(name)) span.append(axis_stride(axis), axis_size(axis));
  return span;
}

bool Mesh::has_axis(std::string_view name) const {
  return find_axis(axes_, name) != nullptr;
}

int Mesh::axis_size(std::string_view name) const {
  const Axis* axis = find_axis(axes_, name);
  return axis == nullptr ? 1 : axis->size;
}

int Mesh::axis_stride(std::string_view name) const {
  int stride = size_;
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    if (axis.name == name) return stride;
  }
  return size_;
}

void Mesh::check_rank(int rank) const {
  if (rank >= 0 && rank < size_) return;
  throw InvalidArgument(fmt::format("there is no rank {} in a mesh of {} ranks ({})", rank, size_, to_string()));
}

int Mesh::data_coordinate(int rank) const {
  check_rank(rank);
  return data_span_.of(rank);
}

int Mesh::coordinate(int rank, std::string_view axis) const {
  check_rank(rank);
  return rank / axis_stride(axis) % axis_size(axis);
}

std::vector<int> Mesh::coordinates(int rank) const {
  std::vector<int> result;
  for (const Axis& axis : axes_) result.push_back(coordinate(rank, axis.name));
  return result;
}

int Mesh::rank_at(const std::vector<int>& coordinates) const {
  if (coordinates.size() != axes_.size()) {
    throw InvalidArgument(fmt::format("{} coordinates given for a mesh of {} axes ({}); pass one per axis",
                                      coordinates.size(), axes_.size(), to_string()));
  }
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= axes_[i].size) {
      throw InvalidArgument(fmt::format("coordinate {} along {} is out of range; the axis has size {}", coordinates[i],
                                        axes_[i].name, axes_[i].size));
    }
    rank = rank * axes_[i].size + coordinates[i];
  }
  return rank;
}

std::vector<int> Mesh::group(int rank, const std::vector<std::string>& axes) const {
  std::vector<int> ranks = {0};
  for (const Axis& axis : axes_) {
    const bool varies = std::find(axes.begin(), axes.end(), axis.name) != axes.end();
    const int own = coordinate(rank, axis.name);
    std::vector<int> next;
    for (const int outer : ranks) {
      for (int at = varies ? 0 : own; at < (varies ? axis.size : own + 1); ++at) next.push_back(outer * axis.size + at);
    }
    ranks = std::move(next);
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::string text;
  for (const Axis& axis : axes_) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text;
}

std::string Mesh::describe(int rank) const {
  if (axes_.empty()) return fmt::format("rank {}", rank);
  std::string text;
  for (const Axis& axis : axes_) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", axis.name, coordinate(rank, axis.name));
  }
  return text;
}

}  // namespace levada
