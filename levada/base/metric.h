// Metrics of a running job.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levada {

/// Names and values, such as {"rank", "3"}.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

/// A metric, named as Prometheus recommends: the name ends with the unit and, for a counter, "total".
struct Metric {
  enum class Type { counter, gauge };

  std::string_view name, help;  ///< literals
  Type type = Type::counter;
  MetricLabels labels;
  double value = 0;

  /// Returns the name with its labels: `levada_feed_batches_total{rank="3"}`.
  std::string id() const;
};

/// Returns the metrics in Prometheus's text format, version 0.0.4
/// (prometheus.io/docs/instrumenting/exposition_formats), grouped by name.
std::string to_prometheus(std::span<const Metric> metrics);

}  // namespace levada
