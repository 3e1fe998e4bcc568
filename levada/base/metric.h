// Numbers of a run that goes on, as monitoring systems collect them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levada {

/// Names and values, such as {"rank", "3"}.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

/// Named as Prometheus recommends: the unit and, of a counter, "total" at the end.
struct Metric {
  enum class Type { counter, gauge };

  std::string_view name, help;  ///< literals
  Type type = Type::counter;
  MetricLabels labels;
  double value = 0;

  /// The name with its labels: `levada_feed_batches_total{rank="3"}`.
  std::string id() const;
};

/// Prometheus's text format, version 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats). Metrics of one name
/// stand together.
std::string to_prometheus(std::span<const Metric> metrics);

}  // namespace levada
