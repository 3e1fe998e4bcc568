// The hosts on which `plan` compares choices of readers: its options, and the comparison as a table and as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/cli/job.h"
#include "levada/plan/cost.h"

namespace levada::cli {

struct ClusterArguments {
  std::optional<std::string> hosts;
  std::string link = "100Gb/s";
  std::string memory = "10GB/s";
  std::string message = "200us";
  int degree = Cluster().degree;
  std::string storage;
  std::string step = "1s";
};

/// Adds --hosts and the options that require it.
void add_cluster_options(CLI::App& command, ClusterArguments& arguments);

/// Parses "64x8": the number of hosts and of ranks per host. Throws InvalidArgument that names --hosts if `text` has
/// another form or there are too many ranks.
std::pair<int, int> parse_hosts(std::string_view text);
/// Parses "100Gb/s", "400Mbit/s" or "12.5GB/s" into bytes per second. Throws InvalidArgument that names `option`.
double parse_speed(std::string_view option, std::string_view text);

/// The costs of each choice of readers for one job on one cluster.
struct Comparison {
  Cluster cluster;
  Job job;
  double step_s = 1;  ///< time of a training step
  std::vector<Cost> costs;

  std::string to_table() const;
  std::string to_json() const;
};

/// Parses and validates the arguments and compares the choices of readers, including those that `job` names. --hosts is
/// required. Without a mesh, all ranks of the cluster form dp. Throws InvalidArgument.
Comparison compare_readers(const JobArguments& job, const ClusterArguments& arguments);

}  // namespace levada::cli
