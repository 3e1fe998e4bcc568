#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "levada/report/feed_plots.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

double of_bound(double work, const StepBalance& entry) {
  return entry.bound > 0 ? work / entry.bound : 1;
}

/// A level line over each entry, from 1 at the ground to `top`.
std::string levels(const std::vector<StepBalance>& entries, double StepBalance::*work, double top) {
  std::string path;
  std::int64_t at = 0;
  for (const auto& entry : entries) {
    const double height = 100 * (of_bound(entry.*work, entry) - 1) / (top - 1);
    fmt::format_to(std::back_inserter(path), "{}{} {:.2f}H{}", path.empty() ? "M" : "L", at, 100 - height,
                   at + entry.steps);
    at += entry.steps;
  }
  return path;
}

std::string key(std::string_view style, std::string_view name, double ratio) {
  return fmt::format(R"(<li><i class="swatch {}"></i>{} <span>{:.3f}x</span></li>)", style, name, ratio);
}

}  // namespace

std::string balance_plot(const BalanceReport& balance) {
  const auto& entries = balance.series.entries();
  if (entries.empty()) return "";
  double most = 1;
  for (const auto& entry : entries) {
    most = std::max({most, of_bound(entry.unbalanced, entry), of_bound(entry.busiest, entry)});
  }
  const double top = 1 + std::max(std::ceil(20 * (most - 1)) / 20, 0.05);
  const auto steps = balance.series.total().steps;
  std::string heights, lines, paths;
  for (const int quarter : {0, 1, 2, 3, 4}) {
    const int y = 100 - 25 * quarter;
    heights += fmt::format(R"(<span style="top:{}%">{:.2f}x</span>)", y, 1 + (top - 1) * quarter / 4);
    lines += fmt::format(R"(<path class="grid" vector-effect="non-scaling-stroke" d="M0 {}H{}"/>)", y, steps);
  }
  for (const auto& [style, work] : {std::pair("c-1", &StepBalance::unbalanced), {"c-2", &StepBalance::busiest}}) {
    paths += fmt::format(R"(<path class="curve {}" vector-effect="non-scaling-stroke" d="{}"/>)", style,
                         levels(entries, work, top));
  }
  return fmt::format(
      R"(<ul class="legend">{}{}</ul><div class="curves"><div class="heights">{}</div><div><svg )"
      R"(viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg></div>)"
      R"(<div class="axis"><span style="left:0%">step 1</span><span class="last" style="left:100%">step {}</span></div>)"
      R"(</div>)",
      key("c-2", "balanced", balance.busiest()), key("c-1", "in the samples' order", balance.unbalanced()), heights,
      steps, escape_html(balance.to_text()), lines, paths, with_commas(steps));
}

}  // namespace levada::report
