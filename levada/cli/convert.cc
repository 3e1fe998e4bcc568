#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "levada/base/atomic_file.h"
#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/file_list.h"
#include "levada/cli/help.h"
#include "levada/cli/text_options.h"
#include "levada/corpus/paths.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"
#include "levada/tokens/convert.h"

namespace levada::cli {
namespace {

struct ConvertArguments {
  std::vector<std::string> paths;       ///< the last one is the destination
  std::vector<std::string> files_from;  ///< lists of further inputs
  std::string dtype = "auto";
  bool append_eod = false;
  TextArguments text;
  int threads = 0;  ///< 0 for one per core
  bool overwrite = false;
  bool json = false;
};

/// The signal that interrupted the command; 0 for none.
std::atomic<int> interrupted = 0;
static_assert(std::atomic<int>::is_always_lock_free);

struct Interrupted {};

/// Defers signals: the first one then ends the command only between two blocks, so that no file of a pair is published
/// without the other. A second one ends it immediately.
void note_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    if (interrupted.exchange(signal) == 0) return;
    AtomicFile::remove_partial_files();
    ::_exit(128 + signal);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

std::optional<DType> parse_dtype(const std::string& name) {
  if (name == "auto") return std::nullopt;
  for (const auto dtype : {dtypes::uint8, dtypes::uint16, dtypes::int16, dtypes::int32, dtypes::int64}) {
    if (dtype.name() == name) return dtype;
  }
  throw InvalidArgument(fmt::format("--dtype is {}; it must be auto, uint8, uint16, int16, int32 or int64", name));
}

ConvertOptions options_of(const ConvertArguments& arguments, const Extensions& extensions) {
  if (arguments.threads < 0)
    throw InvalidArgument(fmt::format("--threads is {}; it must not be negative", arguments.threads));
  ConvertOptions options{
      .tokenizer = open_named_tokenizer({arguments.text.tokenizer, {}, arguments.text.special_tokens}, extensions),
      .dtype = parse_dtype(arguments.dtype),
      .text = arguments.text.options,
      .formats = extensions.formats,
      .threads = arguments.threads > 0 ? arguments.threads : static_cast<int>(std::thread::hardware_concurrency()),
      .overwrite = arguments.overwrite};
  if (arguments.append_eod || !arguments.text.end_of_document.empty()) {
    options.end_of_document = choose_end_of_document(*options.tokenizer, arguments.text.end_of_document);
  }
  return options;
}

double speed(const Conversion& done, double seconds) {
  return static_cast<double>(done.bytes_read) / 1e6 / std::max(seconds, 1e-9);
}

std::string as_json(const Conversion& done, double seconds) {
  const nlohmann::ordered_json json = {{"bin", done.paths.bin},
                                       {"idx", done.paths.idx},
                                       {"dtype", done.dtype.name()},
                                       {"documents", done.documents},
                                       {"sequences", done.sequences},
                                       {"tokens", done.tokens},
                                       {"skipped_lines", done.bad_lines.count},
                                       {"skipped_places", done.bad_lines.first},
                                       {"bytes_read", done.bytes_read},
                                       {"bytes_written", done.bytes_written},
                                       {"seconds", seconds},
                                       {"mb_per_s", speed(done, seconds)}};
  return json_text(json) + "\n";
}

std::string as_text(const Conversion& done, double seconds) {
  auto text =
      fmt::format("{} and {}: {} tokens of {} in {}, {}\n", output_style().bold(printable(done.paths.bin)),
                  output_style().bold(printable(done.paths.idx)), report::with_commas(done.tokens), done.dtype.name(),
                  report::counted(done.documents, "document"), format_bytes(done.bytes_written));
  text += fmt::format("read {} in {}, {:.0f} MB/s\n", format_bytes(done.bytes_read), report::format_seconds(seconds),
                      speed(done, seconds));
  if (done.bad_lines.count > 0)
    text += fmt::format("left out {}\n", report::bad_lines_sentence(done.bad_lines.count, done.bad_lines.first));
  return text;
}

int run_convert(const ConvertArguments& arguments, const Extensions& extensions) {
  auto inputs = arguments.paths;
  if (inputs.size() < 2 && arguments.files_from.empty()) {
    throw InvalidArgument(fmt::format(
        "{} is the only argument: convert needs the inputs and, last, the output name; see levada convert --help",
        inputs.front()));
  }
  const auto to = inputs.back();
  inputs.pop_back();
  if (is_text(to, extensions.formats))
    throw InvalidArgument(fmt::format("{} is a text file, but the last argument is the output name", printable(to)));
  append_file_lists(inputs, arguments.files_from);
  note_signals();
  auto options = options_of(arguments, extensions);
  const auto storage = open_storage(extensions);
  options.open = [&](const std::string& path) { return storage.open(path); };
  inputs =
      expand_paths(inputs, extensions.formats, {}, [&](const std::string& url) { return storage.list(url); }).files;
  report::ProgressLine line("converting");
  options.progress = [&](std::uint64_t done, std::uint64_t in_all) {
    if (interrupted != 0) throw Interrupted();
    if (line.is_due()) line.update(done, in_all, fmt::format("{} of {}", format_bytes(done), format_bytes(in_all)));
  };
  const auto start = Clock::now();
  try {
    const auto done = convert_to_megatron(inputs, to, options);
    const double seconds = seconds_since(start);
    line.clear();
    print(arguments.json ? as_json(done, seconds) : as_text(done, seconds));
    return 0;
  } catch (const Interrupted&) {
    return 128 + interrupted;
  }
}

}  // namespace

void add_convert(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<ConvertArguments>();
  auto* command = app.add_subcommand("convert", "Tokenize text into a Megatron-LM data set (.bin and .idx)");
  command
      ->add_option("INPUT", arguments->paths,
                   "Input files, .jsonl or .txt, plain or compressed (.gz, .zst); the last argument is the output name")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_files_from(*command, arguments->files_from);
  add_option(*command, "--dtype", arguments->dtype, "TYPE",
             "Type of a token: auto, uint8, uint16, int16, int32 or int64");
  command->add_flag("--append-eod", arguments->append_eod, "Append the end-of-document token (--eod) to each document");
  add_text_options(*command, arguments->text);
  add_number(*command, "--threads", arguments->threads, "N", "Tokenizing threads [one per core]");
  command->add_flag("--overwrite", arguments->overwrite, "Overwrite an existing data set");
  command->option_defaults()->group("Output");
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  show_first(*command, {"--tokenizer", "--append-eod", "--text-field", "--dtype", "--threads", "--overwrite"});
  command->footer(
      "Example: corpus.bin and corpus.idx, read by levada feed corpus\n"
      "  levada convert corpus.jsonl corpus --tokenizer model.model --append-eod");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_convert(*arguments, invocation.extensions); };
  });
}

}  // namespace levada::cli
