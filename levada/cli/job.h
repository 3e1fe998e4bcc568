// The mesh, layout, readers and fields of a job, as `feed` and `plan` take them from the command line.
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
  std::string data_axes;  ///< by comma; empty: those known by name
  std::int64_t batch = 8;
  std::int64_t sequence = 1024;
  std::string readers = "one";
  std::string divide = "deal";
  std::string layout = "gpt";
  bool attention_mask = false;
  std::string dtype = "int64";  ///< of tokens, labels and position_ids
};

struct Job {
  Mesh mesh;
  Layout layout;
  Readers readers;
  Divide divide = Divide::deal;
  std::vector<Field> fields;  ///< of one batch, as a Corpus makes it: when splitting, of the global one

  Plan plan() const {
    return plan_fan_out(fields, layout, mesh, {.readers = readers, .divide = divide, .host_of = one_host()});
  }
  /// All ranks on one host: what this machine can start.
  std::vector<int> one_host() const { return std::vector<int>(static_cast<std::size_t>(mesh.size()), 0); }
};

void add_job_options(CLI::App& command, JobArguments& arguments);

/// Reads and checks them, down to whether every field can be cut. `world_size`: of the job that this process is in.
/// Throws InvalidArgument.
Job parse_job(const JobArguments& arguments, std::optional<int> world_size = {});

}  // namespace levada::cli
