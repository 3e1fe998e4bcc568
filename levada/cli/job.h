// The mesh, layout, readers and fields of a job, from the command line of `feed` and `plan`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/plan/plan.h"

namespace levada::cli {

struct JobArguments {
  std::string mesh;
  std::string data_axes;  ///< comma-separated; empty for the standard names of data axes
  std::int64_t batch = 8;
  std::int64_t sequence = 1024;
  std::string readers = "one";
  std::string divide = "deal";
  std::string layout = "gpt";
  bool attention_mask = false;
  std::string dtype = "int64";  ///< dtype of tokens, labels and position_ids
};

struct Job {
  Mesh mesh;
  Layout layout;
  Readers readers;
  Divide divide = Divide::deal;
  std::vector<Field> fields;  ///< fields of one batch as a Corpus makes it; of the global batch when splitting

  Plan plan() const {
    return plan_fan_out(fields, layout, mesh, {.readers = readers, .divide = divide, .host_of = one_host()});
  }
  /// Places all ranks on one host, since this machine starts them all.
  std::vector<int> one_host() const { return std::vector<int>(static_cast<std::size_t>(mesh.size()), 0); }
};

void add_job_options(CLI::App& command, JobArguments& arguments);

/// Parses and validates the arguments, including whether every field can be cut. `world_size` is that of the job that
/// this process belongs to. Throws InvalidArgument.
Job parse_job(const JobArguments& arguments, std::optional<int> world_size = {});

}  // namespace levada::cli
