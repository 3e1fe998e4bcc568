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
  std::int64_t skip = 0;               ///< rounds
  std::string load_state, save_state;  ///< files; empty: none
  std::int64_t save_every = 0;         ///< steps; 0: at the end alone
  HistoryFiles history;
  std::string metrics;  ///< MetricsTarget; empty: none
  bool json = false;
  /// What the process that started the ranks has read to tokenize and index the data. Not for users.
  std::uint64_t prepare_bytes = 0;
  double prepare_seconds = 0;  ///< and how long that took
  /// Where that process passes on what it has read of files_from. Not for users.
  std::string passed_files;
  report::RunFacts run;
};

/// What is done with a last step that is not full. Throws InvalidArgument.
Tail tail_of(const FeedArguments& arguments);

/// The state that the arguments name, read; empty if they name none. Throws InvalidArgument.
std::string state_to_load(const FeedArguments& arguments);

/// Returns where to begin: at the loaded state, if there is one, and after the rounds to skip. Throws as
/// Corpus::resume() does.
StartPoint start_point(Corpus& corpus, std::string_view state, const Job& job, const FeedArguments& arguments);

/// Feeds this rank until the end and gathers what all ranks received. Collective; returns the report on rank 0, empty
/// on others. Throws what went wrong, on every rank.
std::optional<report::FeedReport> feed_rank(const std::shared_ptr<Engine>& engine, const Job& job,
                                            const FeedArguments& arguments);

}  // namespace levada::cli
