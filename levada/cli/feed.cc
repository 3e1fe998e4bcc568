#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/urls.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"
#include "levada/cli/feed_rank.h"
#include "levada/cli/file_list.h"
#include "levada/cli/help.h"
#include "levada/cli/metrics_exporter.h"
#include "levada/cli/state.h"
#include "levada/corpus/mix_file.h"
#include "levada/corpus/paths.h"
#include "levada/engine/greeting.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/launch/launch.h"
#include "levada/sources/file.h"

namespace levada::cli {
namespace {

void check_tail(const FeedArguments& arguments) {
  if (arguments.skip < 0) throw InvalidArgument(fmt::format("--skip is {}; it must not be negative", arguments.skip));
  if (!arguments.eval) return;
  if (arguments.epochs != 1 || arguments.steps || arguments.skip > 0 || arguments.tail == "pad") {
    throw InvalidArgument("--eval reads every sample exactly once: remove --epochs, --steps, --skip and --tail pad");
  }
}

void check_state(const FeedArguments& arguments) {
  if (arguments.save_every < 0)
    throw InvalidArgument(fmt::format("--every is {}; it must not be negative", arguments.save_every));
  if (arguments.resume_weights && arguments.load_state.empty()) {
    throw InvalidArgument("--resume-weights changes the weights of a resumed run: name its state with --load-state");
  }
  if (arguments.save_every > 0 && arguments.save_state.empty()) {
    throw InvalidArgument("--every sets how often to save the state: name its file with --save-state");
  }
}

/// Returns the local files of a corpus; for a .bin/.idx pair, both names.
std::vector<std::string> local_files(std::vector<std::string> paths, std::span<const TextFormat> formats) {
  std::erase_if(paths, [](const std::string& path) { return is_url(path) && !path.starts_with("file://"); });
  auto files = paths.empty() ? paths : expand_paths(paths, formats).files;
  for (std::size_t i = files.size(); i-- > 0;) {
    const auto path = files[i];
    const bool is_of_pair = path.ends_with(".bin") || path.ends_with(".idx");
    const auto prefix = is_of_pair ? path.substr(0, path.size() - 4) : path;
    for (const auto* end : {".bin", ".idx"}) files.push_back(prefix + end);
  }
  return files;
}

/// Returns the local files that the feed reads, as far as arguments and mixes name them.
std::vector<std::string> files_read(const FeedArguments& arguments) {
  const auto& formats = arguments.extensions.formats;
  auto files = local_files(arguments.paths, formats);
  for (const auto& path : arguments.paths) {
    if (!is_mix_file(path) || is_url(path)) continue;
    for (const auto& source : read_mix_file(path).sources) {
      const auto more = local_files(source.paths, formats);
      files.insert(files.end(), more.begin(), more.end());
    }
  }
  files.insert(files.end(), arguments.files_from.begin(), arguments.files_from.end());
  files.insert(files.end(),
               {arguments.text.tokenizer, arguments.chat_template, arguments.job.layout, arguments.load_state});
  return files;
}

/// Must be called in one process only, because a second one would find the file that the first is writing.
void check_files(const FeedArguments& arguments, const Job& job) {
  auto outputs = outputs_of(arguments.history);
  if (!arguments.save_state.empty()) {
    outputs.push_back({.option = "--save-state", .path = arguments.save_state, .may_replace = arguments.load_state});
  }
  if (!arguments.metrics.empty()) {
    const auto target = MetricsTarget::parse(arguments.metrics);
    const auto ranks = job.mesh.size();
    check(target, ranks);
    for (int rank = 0; !target.port && rank < ranks; ++rank) {
      const auto own = target.of({.name = {}, .rank = rank, .size = ranks, .host_of = job.one_host()});
      outputs.push_back({.option = "--metrics", .path = own.path});
    }
  }
  check_outputs(outputs, [&] { return files_read(arguments); });
}

void check(const FeedArguments& arguments) {
  launch::check_engine(arguments.engine);
  if (parse_access(arguments.access, "--access") == Access::private_) {
    throw InvalidArgument(
        "--access is private; it must be read_only or copy, because the feed never writes to its batches");
  }
  if (parse_duration(arguments.timeout) <= Duration::zero()) {
    throw InvalidArgument(fmt::format("--timeout is {}; it must be positive", arguments.timeout));
  }
  check_data_options(arguments);
  if (!(arguments.compute_ms >= 0) || std::isinf(arguments.compute_ms))
    throw InvalidArgument(fmt::format("--compute-ms is {}; it must be finite and not negative", arguments.compute_ms));
  check_tail(arguments);
  check_state(arguments);
}

void check_depth(const FeedArguments& arguments, const Job& job) {
  const int stages = job.mesh.axis_size("pp");
  if (arguments.depth < 0 || (arguments.depth != 0 && arguments.depth < stages)) {
    throw InvalidArgument(fmt::format("--depth is {}; with {} it must be at least {}", arguments.depth,
                                      stages == 1 ? "one pipeline stage" : fmt::format("{} pipeline stages", stages),
                                      stages));
  }
}

/// Prints the report. Throws EngineError instead if ranks that share their data received different data.
void show(const report::FeedReport& report, bool json) {
  const auto difference = report::find_difference(report.ranks, report.peers);
  if (!difference.empty()) throw EngineError(difference);
  print(json ? report.to_json() + "\n" : report.to_text(output_style()));
}

int feed_as_rank(const FeedArguments& arguments, const Job& job) {
  if (!arguments.save_state.empty()) hold_termination();
  return run_as_rank(arguments.engine, parse_duration(arguments.timeout), [&](const std::shared_ptr<Engine>& engine) {
    if (const auto report = feed_rank(engine, job, arguments)) show(*report, arguments.json);
    return 0;
  });
}

int feed_threads(const FeedArguments& arguments, const Job& job) {
  if (!arguments.save_state.empty()) hold_termination();
  std::optional<report::FeedReport> report;
  inproc::run_ranks(job.mesh.size(), [&](const std::shared_ptr<Engine>& engine) {
    if (auto mine = feed_rank(engine, job, arguments)) report = std::move(mine);
  });
  show(report.value(), arguments.json);
  return 0;
}

int feed_processes(const FeedArguments& arguments, const Job& job, const Invocation& invocation) {
  auto command_line = invocation.arguments;
  command_line.insert(command_line.begin() + 1, {fmt::format("--prepare-bytes={}", arguments.prepare_bytes),
                                                 fmt::format("--prepare-seconds={}", arguments.prepare_seconds)});
  std::optional<SharedFileList> list;
  if (!arguments.files_from.empty()) {
    list.emplace(arguments.paths);
    command_line.insert(command_line.begin() + 1, "--passed-files=" + list->path());
  }
  auto options = invocation.ranks;
  // The batches in flight must be used before the state can be resumed.
  if (!arguments.save_state.empty()) options.signal_grace = parse_duration(arguments.timeout);
  // Leaves time to write the history, also after a failure.
  if (arguments.history.wanted()) options.report_grace = std::chrono::seconds(5);
  const auto result = launch::run_local(job.mesh.size(), command_line, options);
  if (!result.message.empty()) print_error(result.message);
  return result.exit_status;
}

/// Expands the paths in place, including those of a list.
void read_lists(FeedArguments& arguments, bool in_job) {
  if (!arguments.passed_files.empty()) {
    arguments.paths = read_file_list(arguments.passed_files);
  } else {
    if (in_job && std::ranges::find(arguments.files_from, "-") != arguments.files_from.end()) {
      throw InvalidArgument("--files-from - cannot be used in a job, whose ranks share no standard input: name a file");
    }
    append_file_lists(arguments.paths, arguments.files_from);
  }
  if (arguments.paths.empty()) {
    throw InvalidArgument("no data is named: add a PATH or --files-from; see levada feed --help");
  }
}

/// Returns whether the parent process passes data to the ranks by this argument.
bool is_passed_on(const std::string& argument) {
  return argument.starts_with("--prepare-bytes=") || argument.starts_with("--prepare-seconds=") ||
         argument.starts_with("--passed-files=");
}

report::RunFacts run_facts(const FeedArguments& arguments, std::vector<std::string> command) {
  std::erase_if(command, is_passed_on);
  std::ranges::transform(command, command.begin(), shown_url);
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return {.version = own_release().name,
          .host = host_name(),
          .began = fmt::format("{:%FT%TZ}", now),
          .command = std::move(command),
          .tokenizer = shown_url(arguments.text.tokenizer),
          .seed = arguments.shuffle ? std::optional(arguments.seed) : std::nullopt};
}

int run_feed(FeedArguments arguments, const Invocation& invocation) {
  check(arguments);
  arguments.run = run_facts(arguments, invocation.arguments);
  const auto place = launch::detect();
  read_lists(arguments, place.has_value());
  const auto job = parse_job(arguments.job, place ? std::optional(place->size) : std::nullopt);
  check_depth(arguments, job);
  if (!place || place->rank == 0) check_files(arguments, job);
  if (place) return feed_as_rank(arguments, job);
  if (job.mesh.size() > max_local_ranks) {
    throw InvalidArgument(
        fmt::format("the mesh {} has {} ranks, but levada feed starts at most {} on one machine; levada plan shows "
                    "what would move on a mesh of any size",
                    job.mesh.to_string(), job.mesh.size(), max_local_ranks));
  }
  // Opens the data before any rank starts: errors in it are reported once, and the ranks find the tokens in the cache.
  {
    const auto begin = Clock::now();
    auto corpus = open_data(arguments, job, tail_of(arguments), true);
    static_cast<void>(start_point(corpus, state_to_load(arguments), job, arguments));
    arguments.prepare_bytes = corpus.stats().prepare_bytes;
    arguments.prepare_seconds = seconds_since(begin);
  }
  return arguments.engine == "inproc" ? feed_threads(arguments, job) : feed_processes(arguments, job, invocation);
}

void add_options(CLI::App& command, FeedArguments& arguments) {
  add_job_options(command, arguments.job);
  add_data_options(command, arguments);
  command.option_defaults()->group("Data");
  add_number(command, "--skip", arguments.skip, "N", "Rounds to skip at the start");
  command.add_flag("--eval", arguments.eval,
                   "Read every sample of every source exactly once, in one epoch, with --tail short");
  command.option_defaults()->group("State");
  command.add_option("--load-state", arguments.load_state, "State to resume from")->type_name("FILE");
  command.add_flag("--resume-weights", arguments.resume_weights,
                   "Resume with the mix's weights instead of the state's");
  command.add_option("--save-state", arguments.save_state, "File for the state at the end, also on SIGTERM")
      ->type_name("FILE");
  add_number(command, "--every", arguments.save_every, "N", "Steps between saved states [saved only at the end]");
  command.option_defaults()->group("Output");
  command.add_option("--report", arguments.history.report, "HTML page that shows where time was spent")
      ->type_name("FILE.html");
  command.add_option("--trace", arguments.history.trace, "Trace of all ranks, for Perfetto")->type_name("FILE.json");
  command
      .add_option("--metrics", arguments.metrics,
                  "Metrics for Prometheus: a port (each further rank of a host uses the next one) or a file")
      ->type_name("[HOST:]PORT|FILE");
  command.add_flag("--json", arguments.json, "One JSON object on standard output");
  command.option_defaults()->group("Speed");
  add_number(command, "--depth", arguments.depth, "N",
             "Maximum number of batches that a rank may lag its reader [pp + 2]");
  add_option(command, "--engine", arguments.engine, "NAME", "Engine: shm (ranks are processes) or inproc (threads)");
  add_option(command, "--access", arguments.access, "HOW", "Access of ranks to batches: read_only (no copy) or copy");
  add_option(command, "--timeout", arguments.timeout, "TIME",
             "Timeout of each wait, including that for all ranks to start: 500ms, 30s, 2m");
  add_option(command, "--compute-ms", arguments.compute_ms, "X", "Time that every rank sleeps after each batch, in ms");
  command.add_option("--prepare-bytes", arguments.prepare_bytes)->group("");
  command.add_option("--prepare-seconds", arguments.prepare_seconds)->group("");
  command.add_option("--passed-files", arguments.passed_files)->group("");
}

}  // namespace

void add_feed(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<FeedArguments>();
  auto* command =
      app.add_subcommand("feed",
                         "Read a corpus on one rank and deliver its part to every rank of a mesh. Joins a launched job "
                         "(torchrun, SLURM, MPI); otherwise starts its own ranks on this machine");
  add_options(*command, *arguments);
  show_first(*command, {"--tokenizer", "--mesh", "--batch", "--seq", "--steps", "--shuffle", "--report"});
  command->footer(
      "Example: four ranks, one reader\n  levada feed corpus.jsonl --tokenizer model.model --mesh dp=2,tp=2 --batch 8 "
      "--seq 1024");
  command->callback([arguments, &invocation] {
    arguments->extensions = invocation.extensions;
    invocation.action = [arguments, &invocation] { return run_feed(*arguments, invocation); };
  });
}

}  // namespace levada::cli
