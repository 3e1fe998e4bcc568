#include "levada/cli/feed_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/urls.h"
#include "levada/cli/command.h"
#include "levada/cli/field_digests.h"
#include "levada/cli/metrics_exporter.h"
#include "levada/cli/small_file.h"
#include "levada/cli/state.h"
#include "levada/engine/choice.h"
#include "levada/engine/collect.h"
#include "levada/feed/context_parts.h"
#include "levada/feed/step_cursor.h"
#include "levada/launch/launch.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"

namespace levada::cli {
namespace {

/// Runs `body`. If it throws an error that the other ranks do not know, aborts them with the error's message.
template <typename Body, typename KnownToAll>
auto or_abort(Engine& engine, const Body& body, const KnownToAll& known_to_all) {
  try {
    return body();
  } catch (const PeerLost&) {
    throw;
  } catch (const Error& error) {
    if (known_to_all()) throw;
    launch::report_failure(error.kind(), error.what());
    engine.abort(error.what());
    throw;
  }
}
template <typename Body>
auto or_abort(Engine& engine, const Body& body) {
  return or_abort(engine, body, [] { return false; });
}

struct Data {
  std::shared_ptr<Corpus> corpus;  ///< null if this rank does not read; never null on rank 0
  StartPoint start;                ///< delayed samples are set only with a corpus
  double open_seconds = 0;         ///< rank 0's
};

/// Opens the data on rank 0 first, so that only one rank tokenizes and reports errors in the data or the state.
/// Collective.
Data open_in_turn(Engine& engine, const Job& job, const FeedArguments& arguments) {
  const auto& info = engine.info();
  const auto readers = job.readers.of(job.mesh, info.host_of);
  const auto sharing = static_cast<int>(std::set(readers.begin(), readers.end()).size());
  Data data;
  ByteWriter outcome;
  if (info.rank == 0) {
    try {
      const auto begin = Clock::now();
      data.corpus = std::make_shared<Corpus>(open_data(arguments, job, tail_of(arguments), true, sharing));
      data.open_seconds = seconds_since(begin);
      const auto state = state_to_load(arguments);
      data.start = start_point(*data.corpus, state, job, arguments);
      outcome.put(data.start.first_sample);
      outcome.put_sized(state);
    } catch (const Error& error) {
      outcome.put(std::int64_t{-1});
      outcome.put(error.kind());
      outcome.put_sized(error.what());
    }
  }
  const auto outcomes = agree(engine, outcome.view(), Deadline::never(), "opening the data");
  ByteReader received(outcomes.front());
  data.start.first_sample = received.get<std::int64_t>();
  if (data.start.first_sample < 0) {
    const auto kind = received.get_enum(ErrorKind::invalid_argument, ErrorKind::engine, "kind of error");
    throw_error(kind, received.get_string());
  }
  const bool reads = readers[static_cast<std::size_t>(info.rank)] == info.rank;
  if (info.rank == 0 || !reads) return data;
  or_abort(engine, [&] {
    data.corpus = std::make_shared<Corpus>(open_data(arguments, job, tail_of(arguments), false, sharing));
    data.start = start_point(*data.corpus, received.get_string(), job, arguments);
  });
  return data;
}

FeedOptions feed_options(const FeedArguments& arguments, const Job& job, const StartPoint& start) {
  return {.batch = arguments.job.batch,
          .divide = job.divide,
          .tail = tail_of(arguments),
          .balance = balance_of(arguments),
          .first_sample = start.first_sample,
          .delayed = start.delayed,
          .steps = arguments.steps,
          .readers = job.readers,
          .depth = arguments.depth,
          .timeout = parse_duration(arguments.timeout),
          .access = parse_access(arguments.access, "--access")};
}

/// Returns the maximum number of steps for the progress line.
std::optional<std::uint64_t> steps_in_all(const Data& data, const Job& job, const FeedArguments& arguments) {
  const auto size = data.corpus != nullptr ? data.corpus->size() : std::nullopt;
  if (!size) return arguments.steps;
  const auto whole = std::max<std::int64_t>(*size - data.start.first_sample, 0) / samples_per_step(job, arguments);
  return static_cast<std::uint64_t>(std::min(whole, arguments.steps.value_or(whole)));
}

struct FeedOutcome {
  std::vector<report::FieldReport> fields;
  std::int64_t steps = 0;
  double seconds = 0, digest_seconds = 0;
};

/// Consumes all batches, as a training loop would.
FeedOutcome take_all(Feed& feed, const FeedArguments& arguments, std::optional<std::uint64_t> steps, bool tell,
                     StateKeeper& state) {
  FieldDigests digests;
  std::int64_t done = 0;
  report::ProgressLine line("feeding", tell);
  const auto compute = std::chrono::duration<double, std::milli>(arguments.compute_ms);
  const auto begin = Clock::now();
  Duration digesting{};
  while (auto batch = feed.next()) {
    const auto taken = Clock::now();
    digests.add(batch->content);
    digesting += Clock::now() - taken;
    if (!batch->cursor.empty()) {
      state.passed(batch->step, batch->cursor);
      done = batch->step + 1;
    }
    if (compute.count() > 0) std::this_thread::sleep_for(compute);
    if (!line.is_due()) continue;
    line.update(static_cast<std::uint64_t>(done), steps, report::counted(done, "step"));
  }
  const auto digest_seconds = std::chrono::duration<double>(digesting).count();
  return {digests.fields(), done, seconds_since(begin) - digest_seconds, digest_seconds};
}

/// Returns whether the feed failed with an error that every rank knows, so that the ranks can still communicate.
bool failed_together(const Feed& feed) {
  return feed.end() && feed.end()->cause == FeedEnd::Cause::failed;
}

/// Takes all batches and saves the state. Also saves it if the feed failed on every rank together: all ranks have then
/// used the same batches, so the state can be resumed.
FeedOutcome take_and_save(Feed& feed, const FeedArguments& arguments, std::optional<std::uint64_t> steps, bool tell,
                          StateKeeper& state) try {
  auto fed = take_all(feed, arguments, steps, tell, state);
  state.save();
  return fed;
} catch (const Error&) {
  if (failed_together(feed)) state.save();
  throw;
}

std::vector<std::pair<std::string, int>> coordinates_of(const Mesh& mesh, int rank) {
  std::vector<std::pair<std::string, int>> coordinates;
  for (const auto& axis : mesh.axes()) coordinates.emplace_back(axis.name, mesh.coordinate(rank, axis.name));
  return coordinates;
}

report::RankReport rank_report(const Feed& feed, const Mesh& mesh, int rank, const FeedOutcome& fed) {
  const auto stats = feed.stats();
  report::RankReport report;
  report.rank = rank;
  report.coordinates = coordinates_of(mesh, rank);
  report.batches = stats.batches;
  report.samples = stats.samples;
  report.bytes = stats.bytes;
  report.copied_batches = stats.copied_batches;
  report.wait_seconds = std::chrono::duration<double>(stats.waited).count();
  report.seconds = fed.seconds;
  report.digest_seconds = fed.digest_seconds;
  report.is_reader = feed.is_reader();
  report.bytes_sent = stats.sent_bytes;
  report.bytes_read = stats.read.bytes_read;
  report.bytes_consumed = stats.read.bytes_consumed;
  report.prepare_bytes = stats.read.prepare_bytes;
  report.field_reports = fed.fields;
  return report;
}

/// Returns groups of ranks that receive the same part of a field of the same batch.
std::vector<report::PeerGroup> peers_of(const Job& job) {
  auto alone = job;
  alone.readers = {};
  const auto plan = alone.plan();
  std::vector<report::PeerGroup> groups;
  std::map<std::string, std::size_t> known;
  for (const auto& move : plan.moves) {
    const auto& audience = plan.audiences[static_cast<std::size_t>(move.audience)];
    const auto& field = plan.fields[static_cast<std::size_t>(move.field)].path;
    const auto key = fmt::format("{} {} {}", audience.unit, field, move.region.to_string());
    const auto [at, is_new] = known.emplace(key, groups.size());
    if (is_new) groups.push_back({field, {}});
    auto& ranks = groups[at->second].ranks;
    ranks.insert(ranks.end(), audience.to.begin(), audience.to.end());
  }
  std::erase_if(groups, [](const report::PeerGroup& group) { return group.ranks.size() < 2; });
  return groups;
}

/// Returns the job as the feed runs it: with max_cp, each rank along cp has separate batches.
Job as_fed(const Job& job, const FeedArguments& arguments) {
  auto fed = job;
  if (auto context =
          context_feed_of(job.mesh, job.layout, {.balance = balance_of(arguments), .readers = job.readers})) {
    fed.mesh = std::move(context->mesh);
    fed.layout = std::move(context->layout);
  }
  return fed;
}

/// Returns the readers that together read everything once: those at coordinate 0 on all axes except the data axes.
std::set<int> readers_of_everything(const Job& job, std::span<const int> host_of) {
  const auto readers = job.readers.of(job.mesh, host_of);
  std::set<int> once;
  if (job.divide == Divide::split) return {readers.front()};
  for (const int rank : job.mesh.group(0, job.mesh.data_axes())) once.insert(readers[static_cast<std::size_t>(rank)]);
  return once;
}

/// One run of the feed on this rank.
struct Run {
  Engine& engine;
  const Job& job;
  const FeedArguments& arguments;
  const Data& data;
  const TraceLog& log;
  Clock::time_point begin = Clock::now();

  bool leads() const { return engine.info().rank == 0; }
  Deadline deadline() const { return Deadline::after(parse_duration(arguments.timeout)); }
};

report::FeedReport job_report(const Run& run, const Feed& feed, FeedEnd::Cause cause, std::int64_t steps,
                              std::vector<report::RankReport> ranks) {
  const auto& info = run.engine.info();
  const FeedArguments& arguments = run.arguments;
  const Job job = as_fed(run.job, arguments);
  const auto first = run.data.start.first_sample;
  report::FeedReport report;
  report.mesh = job.mesh.to_string();
  report.engine = info.name;
  report.engine_choice = describe_engine(info);
  report.readers = job.readers.to_string();
  report.dp = run.job.mesh.data_size();
  report.batch = arguments.job.batch;
  for (const int rank : job.mesh.group(0, job.mesh.data_axes())) {
    report.samples += ranks[static_cast<std::size_t>(rank)].samples;
  }
  report.sequence = arguments.job.sequence;
  report.steps = steps;
  if (const auto by = balance_of(arguments)) {
    report.balance = {.by = *by, .ranks = job.mesh.data_size(), .series = feed.balance()};
  }
  report.end_cause = to_string(cause);
  report.files = run.data.corpus->files();
  report.documents = run.data.corpus->documents();
  report.stored_documents = run.data.corpus->stored_documents();
  report.left_out = run.data.corpus->left_out();
  auto bad_lines = run.data.corpus->bad_lines();
  report.skipped_lines = bad_lines.count;
  report.skipped_places = std::move(bad_lines.first);
  for (auto& share : run.data.corpus->shares(first, first + report.samples)) {
    report.sources.push_back({std::move(share.name), share.samples, share.tokens, share.share});
  }
  report.run = arguments.run;
  report.prepare_seconds = arguments.prepare_seconds + run.data.open_seconds;
  report.prepare_bytes = arguments.prepare_bytes;
  for (const auto& rank : ranks) report.prepare_bytes += rank.prepare_bytes;
  for (const int reader : readers_of_everything(job, info.host_of)) {
    report.bytes_consumed += ranks[static_cast<std::size_t>(reader)].bytes_consumed;
  }
  report.state_file = arguments.save_state;
  report.peers = peers_of(job);
  report.ranks = std::move(ranks);
  return report;
}

struct GatheredReport {
  report::FeedReport report;
  std::vector<Trace> traces;  ///< by rank
};

/// Returns the report of all ranks on rank 0, empty on others. Collective.
std::optional<GatheredReport> gather(const Run& run, const Feed& feed, const FeedOutcome& fed) {
  const auto mine = encode(rank_report(feed, run.job.mesh, run.engine.info().rank, fed));
  const auto reports = agree(run.engine, mine, run.deadline(), "gathering the report");
  std::vector<Trace> traces;
  if (run.arguments.history.wanted()) traces = gather_traces(run.engine, run.log.trace(), run.deadline());
  if (!run.leads()) return {};
  std::vector<report::RankReport> ranks;
  for (const auto& each : reports) ranks.push_back(decode<report::RankReport>(each));
  return GatheredReport{job_report(run, feed, feed.end()->cause, fed.steps, std::move(ranks)), std::move(traces)};
}

/// Returns rank 0's part of the report, for when the other ranks cannot answer; nothing on other ranks.
std::optional<GatheredReport> gather_local(const Run& run, const Feed& feed, const FeedOutcome& fed) {
  if (!run.leads()) return {};
  std::vector<report::RankReport> ranks;
  for (int rank = 0; rank < run.engine.info().size; ++rank) {
    ranks.push_back({.rank = rank, .coordinates = coordinates_of(run.job.mesh, rank)});
  }
  ranks.front() = rank_report(feed, run.job.mesh, 0, fed);
  std::vector<Trace> traces(ranks.size());
  traces.front() = run.log.trace();
  return GatheredReport{job_report(run, feed, FeedEnd::Cause::failed, fed.steps, std::move(ranks)), std::move(traces)};
}

/// `error` is the reason for a failure of the feed; empty if it succeeded.
void write_files(const Run& run, GatheredReport gathered, const std::string& error) {
  std::vector<std::string> paths(run.arguments.paths.size());
  std::ranges::transform(run.arguments.paths, paths.begin(), shown_url);
  report::FeedHistory history{
      .paths = std::move(paths), .traces = std::move(gathered.traces), .edges = {}, .pipelines = {}, .error = error};
  const auto readers = run.job.readers.of(run.job.mesh, run.engine.info().host_of);
  for (const auto& rank : gathered.report.ranks) {
    history.edges.push_back({readers[static_cast<std::size_t>(rank.rank)], rank.rank, rank.bytes});
  }
  write_history(run.arguments.history, gathered.report, std::move(history));
}

/// Writes the report and trace of a failed feed. An error during that is only printed.
void show_failure(const Run& run, const Feed& feed, const Error& error) {
  if (!run.arguments.history.wanted()) return;
  const FeedOutcome fed{.fields = {}, .steps = feed.stats().batches, .seconds = seconds_since(run.begin)};
  try {
    const bool together = failed_together(feed);
    auto gathered = together ? gather(run, feed, fed) : gather_local(run, feed, fed);
    if (gathered) write_files(run, std::move(*gathered), error.what());
    // The first rank that exits ends the others, so no rank exits before the files exist.
    if (together) agree(run.engine, {}, run.deadline(), "writing the report");
  } catch (const Error& second) {
    if (run.leads()) print_error(second.what());
  }
}

}  // namespace

Tail tail_of(const FeedArguments& arguments) {
  return arguments.eval ? Tail::short_ : parse_tail(arguments.tail, "--tail");
}

std::string state_to_load(const FeedArguments& arguments) {
  return arguments.load_state.empty() ? std::string() : read_small_file("state", arguments.load_state);
}

StartPoint start_point(Corpus& corpus, std::string_view state, const Job& job, const FeedArguments& arguments) {
  auto start = state.empty() ? StartPoint() : resume(corpus, state, arguments.load_state);
  const auto step = samples_per_step(job, arguments);
  if (arguments.skip > (std::numeric_limits<std::int64_t>::max() / 2 - start.first_sample) / step) {
    throw InvalidArgument(fmt::format("--skip is {}; that is beyond any data", arguments.skip));
  }
  start.first_sample += arguments.skip * step;
  if (const auto size = corpus.size()) start.first_sample = std::min(start.first_sample, *size);
  return start;
}

std::optional<report::FeedReport> feed_rank(const std::shared_ptr<Engine>& engine, const Job& job,
                                            const FeedArguments& arguments) {
  const auto& info = engine->info();
  const auto data = open_in_turn(*engine, job, arguments);
  TraceLog log = make_trace_log(info.size);
  auto options = feed_options(arguments, job, data.start);
  if (arguments.history.wanted()) options.trace = &log;
  Feed feed(engine, job.mesh, job.layout, data.corpus, options);
  const TerminationWatch watch([&feed] { feed.request_stop(); });
  std::optional<MetricsExporter> exporter;
  if (!arguments.metrics.empty()) {
    or_abort(*engine, [&] {
      exporter.emplace(MetricsTarget::parse(arguments.metrics).of(info), [&feed, rank = std::to_string(info.rank)] {
        return feed.stats().metrics({{"rank", rank}});
      });
    });
  }
  const Run run{*engine, job, arguments, data, log};
  StateKeeper state(
      *engine, {arguments.save_state, arguments.save_every, options.timeout},
      run.leads() ? StepCursor{data.corpus->cursor(data.start.first_sample), data.start.delayed}.encode() : Bytes());
  std::optional<GatheredReport> gathered;
  try {
    const auto fed = or_abort(
        *engine, [&] { return take_and_save(feed, arguments, steps_in_all(data, job, arguments), run.leads(), state); },
        [&] { return failed_together(feed); });
    gathered = or_abort(*engine, [&] { return gather(run, feed, fed); });
  } catch (const Error& error) {
    show_failure(run, feed, error);
    throw;
  }
  if (!gathered) return {};
  auto report = gathered->report;
  if (arguments.history.wanted()) write_files(run, std::move(*gathered), "");
  return report;
}

}  // namespace levada::cli
