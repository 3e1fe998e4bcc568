// `--metrics`: numbers of a run, for Prometheus to collect while the run goes on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/metric.h"
#include "levada/engine/engine.h"

namespace levada::cli {

/// Where numbers go: to those who ask a port by HTTP, or to a file. Each rank has its own: the ranks of a host take the
/// ports from the one named on, and where there are several ranks each puts its number into the file's name.
struct MetricsTarget {
  std::string host;  ///< of whose addresses the port is; empty: every one of this machine
  std::optional<int> port;
  std::string path;  ///< without a port

  /// "PORT", "HOST:PORT" or a path.
  static MetricsTarget parse(const std::string& text);
  /// A rank's own.
  MetricsTarget of(const EngineInfo& info) const;
};

/// Throws InvalidArgument, naming the option, for more ranks than there are ports, and a file that cannot be written.
void check(const MetricsTarget& target, int ranks);

/// Exports numbers until it is destroyed; a file is replaced every five seconds and at the end.
class MetricsExporter {
 public:
  /// `collect` is called on a thread of the exporter's own. Throws EngineError, naming the option, where the port
  /// cannot be had.
  MetricsExporter(const MetricsTarget& target, std::function<std::vector<Metric>()> collect);
  ~MetricsExporter();
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levada::cli
