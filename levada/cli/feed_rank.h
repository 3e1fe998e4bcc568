// One rank's part of `levada feed`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/cli/data_options.h"
#include "levada/cli/feed_history.h"
#include "levada/cli/state.h"
#include "levada/corpus/corpus.h"
#include "levada/engine/engine.h"
#include "levada/feed/feed.h"
#include "levada/report/feed_report.h"

namespace levada::cli {

struct FeedArguments : DataArguments {
  int depth = 0;
  std::string engine = "shm";
  std::string timeout = "30s";
  double compute_ms = 0;
  std::string access = "read_only";
  std::int64_t skip = 0;               ///< rounds to skip
  std::string load_state, save_state;  ///< files; empty: none
  std::int64_t save_every = 0;         ///< steps between two files; 0 for a single one at the end
  HistoryFiles history;
  std::string metrics;  ///< text of a MetricsTarget; empty for none
  bool json = false;
  /// Bytes that the parent process read to tokenize and index the data. Internal.
  std::uint64_t prepare_bytes = 0;
  double prepare_seconds = 0;  ///< time that this took
  /// Path to the parent process's copy of files_from. Internal.
  std::string passed_files;
  report::RunFacts run;
};

/// Returns what to do with an incomplete last step. Throws InvalidArgument.
Tail tail_of(const FeedArguments& arguments);

/// Reads and returns the state that the arguments name, or an empty string if they name none. Throws InvalidArgument.
std::string state_to_load(const FeedArguments& arguments);

/// Returns the starting position: that of the loaded state, if any, plus the rounds to skip. Throws as Corpus::resume()
/// does.
StartPoint start_point(Corpus& corpus, std::string_view state, const Job& job, const FeedArguments& arguments);

/// Feeds this rank until the end and gathers what all ranks received. Collective. Returns the report on rank 0, nothing
/// on other ranks. Throws on every rank if one fails.
std::optional<report::FeedReport> feed_rank(const std::shared_ptr<Engine>& engine, const Job& job,
                                            const FeedArguments& arguments);

}  // namespace levada::cli
