#include "levada/mesh/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <span>

#include "levada/base/error.h"
#include "levada/mesh/mesh.h"

namespace levada {
namespace {

std::string text_of(const Shard& placement) {
  return fmt::format("shard({},{})", placement.axis, placement.dim);
}

std::string text_of(const Replicate& placement) {
  return fmt::format("replicate({})", placement.axis);
}

std::string text_of(const Zigzag& placement) {
  return fmt::format("zigzag({},{})", placement.axis, placement.dim);
}

std::string text_of(const Stages& placement) {
  return fmt::format("stages({}{}{})", placement.axis, placement.names.empty() ? "" : ",",
                     fmt::join(placement.names, ","));
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

[[noreturn]] void throw_invalid(std::string_view text, std::string_view why) {
  throw InvalidArgument(
      fmt::format("'{:.80}' is not a placement: {}; write shard(axis,dim), replicate(axis), zigzag(axis,dim) or "
                  "stages(axis,name,...)",
                  text, why));
}

std::string parse_name(std::string_view name, std::string_view whole) {
  if (!is_name(name)) throw_invalid(whole, fmt::format("'{:.40}' is not a name", name));
  return std::string(name);
}

int parse_dim(std::span<const std::string_view> arguments, std::string_view whole) {
  if (arguments.size() != 2) throw_invalid(whole, "it takes an axis and a dimension");
  int dim = 0;
  const auto digits = arguments[1];
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), dim);
  if (error != std::errc() || end != digits.data() + digits.size() || dim < 0) {
    throw_invalid(whole, fmt::format("'{:.40}' is not a dimension; dimensions count from 0", digits));
  }
  return dim;
}

}  // namespace

std::string to_string(const Placement& placement) {
  return std::visit([](const auto& p) { return text_of(p); }, placement);
}

Placement parse_placement(std::string_view text) {
  const auto whole = trimmed(text);
  const auto open = whole.find('(');
  if (open == std::string_view::npos || whole.back() != ')') throw_invalid(text, "it has no arguments in parentheses");
  const auto kind = trimmed(whole.substr(0, open));
  const auto arguments = split_at_commas(whole.substr(open + 1, whole.size() - open - 2));
  const auto axis = parse_name(arguments.front(), text);
  if (kind == "shard") return Shard{axis, parse_dim(arguments, text)};
  if (kind == "zigzag") return Zigzag{axis, parse_dim(arguments, text)};
  if (kind == "replicate") {
    if (arguments.size() != 1) throw_invalid(text, "it takes only an axis");
    return Replicate{axis};
  }
  if (kind == "stages") {
    Stages stages{axis, {}};
    for (const auto name : std::span(arguments).subspan(1)) stages.names.push_back(parse_name(name, text));
    return stages;
  }
  throw_invalid(text, fmt::format("unknown kind '{:.40}'", kind));
}

std::string_view axis_of(const Placement& placement) {
  return std::visit([](const auto& p) -> std::string_view { return p.axis; }, placement);
}

}  // namespace levada
