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
  std::string chat_template;  ///< "own" or a file; empty: there are no chats
  CacheArguments cache;
  std::string pack = "cut";
  std::int64_t pad_to = 1;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  std::vector<double> split;  ///< proportions; empty: none
  std::string part = "train";
  int io_threads = 1;
  double io_limit = 0;  ///< MB/s of all readers together; 0: none
  std::string access = "read_only";
  std::string tail = "drop";
  std::string balance;          ///< the cost by which steps are balanced; empty: by tokens where max_tokens is set
  std::int64_t max_tokens = 0;  ///< of a micro-batch; 0: there are none
  std::string counts;           ///< "equal" or "free"; empty: free where there are micro-batches
  std::string micro_order = "as-read";
  std::int64_t skip = 0;  ///< rounds
  bool eval = false;
  std::string load_state, save_state;  ///< files; empty: none
  bool resume_weights = false;
  std::int64_t save_every = 0;  ///< steps; 0: at the end alone
  HistoryFiles history;
  bool json = false;
  Extensions extensions = {};  ///< not an argument: what the program adds
  /// What the process that started the ranks has read to tokenize and index the data. Not for users.
  std::uint64_t index_bytes = 0;
  /// Where that process passes on what it has read of files_from. Not for users.
  std::string passed_files;
};

/// How steps are balanced; empty if they are not. Throws InvalidArgument.
std::optional<Balance> balance_of(const FeedArguments& arguments);

/// Opens the data, and tokenizes text if need be, with a line of progress where `tell`. `readers`: how many share the
/// storage. Throws SourceError, and InvalidArgument where it is less than one step takes.
Corpus open_data(const FeedArguments& arguments, const Job& job, bool tell, int readers = 1);

/// The state that the arguments name, read; empty if they name none. Throws as read_state() does.
std::string state_to_load(const FeedArguments& arguments);

/// The sample at which to begin: where the loaded state says, if there is one, and after the rounds to skip. Throws as
/// Corpus::resume() does.
std::int64_t first_sample(Corpus& corpus, std::string_view state, const Job& job, const FeedArguments& arguments);

/// Feeds this rank until the end and gathers what all ranks were given. Collective; on rank 0 the report, empty on
/// others. Throws what went wrong, on every rank.
std::optional<report::FeedReport> feed_rank(const std::shared_ptr<Engine>& engine, const Job& job,
                                            const FeedArguments& arguments);

}  // namespace levada::cli
