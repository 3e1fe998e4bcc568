// `--metrics`: exports a running job's metrics to Prometheus.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "levada/base/metric.h"
#include "levada/base/unique_fd.h"
#include "levada/cli/metrics_server.h"
#include "levada/engine/engine.h"

namespace levada::cli {

/// The HTTP port or file to which a rank exports its metrics. The n-th rank of a host uses the n-th port, beginning
/// with `port`; in a job of several ranks, each rank adds its number to the file's name.
struct MetricsTarget {
  std::string host;  ///< address to listen on, 127.0.0.1 by default; empty for a file
  std::optional<int> port;
  std::string path;  ///< file, if there is no port

  /// Parses "PORT", "HOST:PORT" or a path.
  static MetricsTarget parse(const std::string& text);
  /// Returns this rank's target.
  MetricsTarget of(const EngineInfo& info) const;
};

/// Throws InvalidArgument that names the option if there are fewer ports than ranks, or if the file cannot be written.
void check(const MetricsTarget& target, int ranks);

/// Exports metrics until it is destroyed. Replaces the file, if that is the target, every five seconds and at the end.
class MetricsExporter {
 public:
  /// Calls `collect` on a separate thread. Throws EngineError that names the option if it cannot listen on the port.
  MetricsExporter(const MetricsTarget& target, std::function<std::vector<Metric>()> collect);
  ~MetricsExporter();
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

 private:
  void write_files();
  void write_file();

  std::string path_;
  std::function<std::vector<Metric>()> collect_;
  UniqueFd stop_;
  std::optional<MetricsServer> server_;
  bool has_failed_ = false;
  std::thread thread_;
};

}  // namespace levada::cli
