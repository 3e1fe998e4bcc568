// One rank's part of `levada feed`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/cli/feed_history.h"
#include "levada/cli/job.h"
#include "levada/cli/text_options.h"
#include "levada/corpus/corpus.h"
#include "levada/engine/engine.h"
#include "levada/feed/feed.h"
#include "levada/report/feed_report.h"

namespace levada::cli {

struct FeedArguments {
  std::vector<std::string> paths;
  std::string files_from;  ///< a list of further paths; empty: none
  JobArguments job;
  std::optional<std::int64_t> steps;
  std::int64_t epochs = 1;
  std::uint64_t seed = 0;
  bool shuffle = false;
  int depth = 0;
  std::string engine = "shm";
  std::string timeout = "30s";
  double compute_ms = 0;
  TextArguments text;
  CacheArguments cache;
  std::string pack = "cut";
  std::int64_t pad_to = 1;
  int io_threads = 1;
  double io_limit = 0;  ///< MB/s of all readers together; 0: none
  std::string access = "read_only";
  std::string tail = "drop";
  std::int64_t skip = 0;  ///< rounds
  bool eval = false;
  std::string load_state, save_state;  ///< files; empty: none
  std::int64_t save_every = 0;         ///< steps; 0: at the end alone
  HistoryFiles history;
  bool json = false;
  Extensions extensions = {};  ///< not an argument: what the program adds
  /// What the process that started the ranks has read to tokenize and index the data. Not for users.
  std::uint64_t index_bytes = 0;
  /// Where that process passes on what it has read of files_from. Not for users.
  std::string passed_files;
};

/// Opens the data, and tokenizes text if need be, with a line of progress where `tell`. `readers`: how many share the
/// storage. Throws SourceError, and InvalidArgument where it is less than one step takes.
Corpus open_data(const FeedArguments& arguments, const Job& job, bool tell, int readers = 1);

/// The sample at which to begin: where the loaded state says, and after the rounds to skip. Throws as read_state() and
/// Corpus::resume() do.
std::int64_t first_sample(const Corpus& corpus, const Job& job, const FeedArguments& arguments);

/// Feeds this rank until the end and gathers what all ranks were given. Collective; on rank 0 the report, empty on
/// others. Throws what went wrong, on every rank.
std::optional<report::FeedReport> feed_rank(const std::shared_ptr<Engine>& engine, const Job& job,
                                            const FeedArguments& arguments);

}  // namespace levada::cli
