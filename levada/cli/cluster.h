// The hosts on which `plan` compares choices of readers: its options, and the comparison for people and programs.
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

/// All but --hosts need that one.
void add_cluster_options(CLI::App& command, ClusterArguments& arguments);

/// "64x8": hosts, and ranks on each. Throws InvalidArgument that names --hosts for other texts and for too many ranks.
std::pair<int, int> parse_hosts(std::string_view text);
/// "100Gb/s", "400Mbit/s", "12.5GB/s": bytes a second. Throws InvalidArgument that names `option`.
double parse_speed(std::string_view option, std::string_view text);

/// What each choice of readers costs in one job on one cluster.
struct Comparison {
  Cluster cluster;
  Job job;
  double step_s = 1;  ///< of training
  std::vector<Cost> costs;

  std::string to_table() const;
  std::string to_json() const;
};

/// Reads and checks the arguments, of which --hosts must be given, and compares. The mesh is the cluster's ranks as dp
/// if there is none; readers that `job` names are compared too. Throws InvalidArgument.
Comparison compare_readers(const JobArguments& job, const ClusterArguments& arguments);

}  // namespace levada::cli
