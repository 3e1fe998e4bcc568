// The options shared by `feed` and `plan`: which data to read, and how to divide it into steps.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/cli/job.h"
#include "levada/cli/text_options.h"
#include "levada/corpus/corpus.h"
#include "levada/feed/tail.h"
#include "levada/plan/step_plan.h"

namespace levada::cli {

struct DataArguments {
  JobArguments job;
  std::vector<std::string> paths;
  std::vector<std::string> files_from;  ///< lists of further paths
  std::optional<std::int64_t> steps;
  std::int64_t epochs = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;
  TextArguments text;
  std::string chat_template;  ///< "own" or a file; empty if there are no chats
  CacheArguments cache;
  std::string pack = "cut";
  std::int64_t pad_to = 1;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  bool resume_weights = false;
  std::vector<double> split;  ///< proportions; empty: none
  std::string part = "train";
  int io_threads = 1;
  double io_limit = 0;  ///< MB/s of all readers together; 0 for no limit
  std::string tail = "drop";
  bool eval = false;    ///< whether to read each sample exactly once, for evaluation
  double max_bad = 1;   ///< maximum fraction of a text's lines that --skip-bad may skip
  std::string balance;  ///< cost by which steps are balanced; empty: tokens if max_tokens is set, otherwise none
  std::int64_t max_tokens = 0;  ///< per micro-batch; 0 for no micro-batches
  std::string counts;           ///< "equal" or "free"; empty for free if there are micro-batches
  std::string micro_order = "as-read";
  std::string wait = "step";
  int max_cp = 1;              ///< maximum number of ranks that share a sequence; 1: those of the mesh
  std::int64_t max_delay = 0;  ///< maximum number of steps that a long sample may wait
  Extensions extensions = {};  ///< set by the program, not an argument
};

/// Adds PATH, --steps and the options that describe the data. add_job_options() adds those of the job.
void add_data_options(CLI::App& command, DataArguments& arguments);

/// Throws InvalidArgument if the arguments are invalid for any data.
void check_data_options(const DataArguments& arguments);

/// Returns how steps are balanced, or nothing if they are not. Throws InvalidArgument.
std::optional<Balance> balance_of(const DataArguments& arguments);

std::int64_t samples_per_step(const Job& job, const DataArguments& arguments);

/// Opens the data and, if necessary, tokenizes text; shows a progress line if `tell`. `readers` is the number of
/// readers that share the storage; `tail` determines the handling of an incomplete last step. Throws SourceError, and
/// InvalidArgument if the data has less than one step.
Corpus open_data(const DataArguments& arguments, const Job& job, Tail tail, bool tell, int readers = 1);

}  // namespace levada::cli
