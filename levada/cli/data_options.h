// Which data is read, and how it becomes steps: what `feed` and `plan` share.
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
  std::string files_from;  ///< a list of further paths; empty: none
  std::optional<std::int64_t> steps;
  std::int64_t epochs = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;
  TextArguments text;
  std::string chat_template;  ///< "own" or a file; empty: there are no chats
  CacheArguments cache;
  std::string pack = "cut";
  std::int64_t pad_to = 1;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  bool resume_weights = false;
  std::vector<double> split;  ///< proportions; empty: none
  std::string part = "train";
  int io_threads = 1;
  double io_limit = 0;  ///< MB/s of all readers together; 0: none
  std::string tail = "drop";
  bool eval = false;            ///< each sample once
  double max_bad = 1;           ///< with --skip-bad: of a text's lines
  std::string balance;          ///< the cost by which steps are balanced; empty: by tokens where max_tokens is set
  std::int64_t max_tokens = 0;  ///< of a micro-batch; 0: there are none
  std::string counts;           ///< "equal" or "free"; empty: free where there are micro-batches
  std::string micro_order = "as-read";
  std::string wait = "step";
  std::int64_t max_delay = 0;  ///< steps that a long sample may wait
  Extensions extensions = {};  ///< not an argument: what the program adds
};

/// PATH, --steps and what describes the data. Those of the job are added by add_job_options().
void add_data_options(CLI::App& command, DataArguments& arguments);

/// Throws InvalidArgument for what cannot be, whatever the data is.
void check_data_options(const DataArguments& arguments);

/// How steps are balanced; empty if they are not. Throws InvalidArgument.
std::optional<Balance> balance_of(const DataArguments& arguments);

std::int64_t samples_a_step(const Job& job, const DataArguments& arguments);

/// Opens the data, and tokenizes text if need be, with a line of progress where `tell`. `readers`: how many share the
/// storage; `tail`: what is done with a last step that is not full. Throws SourceError, and InvalidArgument where it is
/// less than one step takes.
Corpus open_data(const DataArguments& arguments, const Job& job, Tail tail, bool tell, int readers = 1);

}  // namespace levada::cli
