#include "levada/corpus/split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::array<std::string_view, 3> names = {"train", "valid", "test"};

void check(std::span<const double> proportions) {
  if (proportions.size() > names.size()) {
    throw InvalidArgument(
        fmt::format("a split takes at most three proportions, of train, valid and test, got {}", proportions.size()));
  }
  for (const double proportion : proportions) {
    if (std::isfinite(proportion) && proportion >= 0) continue;
    throw InvalidArgument(
        fmt::format("a split's proportions must be finite and not negative, got {}", fmt::join(proportions, ",")));
  }
}

}  // namespace

DocumentShare part_of_split(std::span<const double> proportions, std::string_view part) {
  const auto index = static_cast<std::size_t>(std::ranges::find(names, part) - names.begin());
  if (index == names.size()) {
    throw InvalidArgument(fmt::format("the part of a split is {}; it must be train, valid or test", printable(part)));
  }
  check(proportions);
  static constexpr std::array<double, 1> whole = {1};
  if (proportions.empty()) proportions = whole;
  if (index >= proportions.size() || !(proportions[index] > 0)) {
    throw InvalidArgument(
        fmt::format("the split {} leaves nothing for {}: give it a share", fmt::join(proportions, ","), part));
  }
  const double sum = std::accumulate(proportions.begin(), proportions.end(), 0.0);
  double end = 0, begin = 0;
  for (std::size_t i = 0; i <= index; ++i) {
    begin = end;
    end += proportions[i] / sum;
  }
  return {.begin = begin, .end = std::min(end, 1.0)};
}

}  // namespace levada
