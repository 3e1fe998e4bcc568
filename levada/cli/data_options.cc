#include "levada/cli/data_options.h"

#include <fmt/format.h>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"
#include "levada/cli/file_list.h"
#include "levada/corpus/split.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"

namespace levada::cli {
namespace {

CorpusOptions corpus_options(const DataArguments& arguments, int readers) {
  CorpusOptions options;
  options.sequence = arguments.job.sequence;
  if (arguments.shuffle) options.shuffle_seed = arguments.seed;
  options.epochs = arguments.epochs;
  options.each_once = arguments.eval;
  options.tokenizer = open_tokenizer({arguments.text.tokenizer, arguments.chat_template, arguments.text.special_tokens},
                                     arguments.extensions);
  options.end_of_document = arguments.text.end_of_document;
  options.text_field = arguments.text.options.text_field;
  options.skip_bad = arguments.text.options.skip_bad;
  options.max_bad = arguments.max_bad;
  options.formats = arguments.extensions.formats;
  options.remote = arguments.extensions.remote;
  options.cache_dir = arguments.cache.dir;
  options.cache_bytes = parse_bytes("--cache-size", arguments.cache.size);
  options.packing = parse_packing(arguments.pack);
  options.pad_to = arguments.pad_to;
  options.split = arguments.split;
  options.part = arguments.part;
  options.io.threads = arguments.io_threads;
  options.io.limit_mb_s = arguments.io_limit / readers;
  options.io.warn = [](const std::string& warning) { print_error(warning); };
  options.attention_mask = arguments.job.attention_mask;
  options.reset_position_ids = arguments.reset_position_ids;
  options.reset_attention_mask = arguments.reset_attention_mask;
  options.eod_mask_loss = arguments.eod_mask_loss;
  options.resume_weights = arguments.resume_weights;
  options.ids = DType::parse(arguments.job.dtype);
  return options;
}

void check_enough(const Corpus& corpus, const Job& job, const DataArguments& arguments, Tail tail) {
  if (tail != Tail::drop) return;
  const auto needed = samples_a_step(job, arguments);
  const auto size = corpus.size();
  if (!size || *size >= needed) return;
  throw InvalidArgument(fmt::format(
      "one step takes {} of {} tokens (batch {} x dp {}), but the data has only {}; lower --batch or --seq, raise "
      "--epochs, or give more data",
      report::counted(needed, "sample"), arguments.job.sequence, arguments.job.batch, job.mesh.data_size(),
      report::with_commas(*size)));
}

}  // namespace

void add_data_options(CLI::App& command, DataArguments& arguments) {
  command
      .add_option(
          "PATH", arguments.paths,
          "What to read: .jsonl and .txt, also .gz and .zst of them; .bin with .idx (by prefix); folders, patterns "
          "('*.jsonl'), or mix.json alone")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_files_from(command, arguments.files_from);
  add_number(command, "--steps", arguments.steps, "N", "At most so many steps [all]");
  add_option(command, "--epochs", arguments.epochs, "E", "Times to go through the data; 0: without end");
  add_option(command, "--tail", arguments.tail, "HOW", "A last round that the data does not fill: drop, pad or short");
  command
      .add_option("--balance", arguments.balance,
                  "Divide the samples of each step over dp ranks so that their work is "
                  "equal: tokens, flops or 'flops(hidden=N)'")
      ->type_name("COST");
  add_number(command, "--max-tokens", arguments.max_tokens, "N",
             "Divide a rank's samples over micro-batches of at most N tokens");
  command
      .add_option("--counts", arguments.counts, "Samples of each rank and step: equal or free [free with --max-tokens]")
      ->type_name("HOW");
  add_number(command, "--max-delay", arguments.max_delay, "N",
             "Let a sample that alone would make a step long wait up to N steps for others like it");
  add_option(command, "--micro-order", arguments.micro_order, "HOW", "Of micro-batches: as-read, long-first or paired");
  command.add_flag("--shuffle", arguments.shuffle, "Another order of samples every epoch");
  add_option(command, "--seed", arguments.seed, "S", "Of the shuffle");
  add_text_options(command, arguments.text);
  command
      .add_option("--max-bad", arguments.max_bad,
                  "The largest share of a text's lines that --skip-bad may leave out [1]")
      ->type_name("X");
  add_chat_template(command, arguments.chat_template);
  add_cache_options(command, arguments.cache);
  add_option(command, "--pack", arguments.pack, "HOW",
             "cut: documents laid end to end; best-fit: whole, side by side; documents: one a sample");
  add_option(command, "--pad-to", arguments.pad_to, "N", "Round packed documents up to multiples of N tokens");
  command.add_flag("--reset-position-ids", arguments.reset_position_ids,
                   "Positions from 0 behind each end of document");
  command.add_flag("--reset-attention-mask", arguments.reset_attention_mask, "Cut documents do not see each other");
  command.add_flag("--eod-mask-loss", arguments.eod_mask_loss, "No loss at the token that ends a document");
  command.add_option("--split", arguments.split, "Proportions in which documents train, validate and test: 98,1,1")
      ->delimiter(',')
      ->type_name("A,B,C");
  add_option(command, "--part", arguments.part, "NAME", "Of the split: train, valid or test");
  add_option(command, "--io-threads", arguments.io_threads, "N", "Read with N threads side by side");
  command.add_option("--io-limit", arguments.io_limit, "Read no faster than X MB/s, all readers together [no limit]")
      ->type_name("X");
}

void check_data_options(const DataArguments& arguments) {
  const auto tail = parse_tail(arguments.tail, "--tail");
  if (arguments.steps.value_or(0) < 0) throw InvalidArgument(fmt::format("--steps is {}", *arguments.steps));
  if (arguments.epochs < 0) throw InvalidArgument(fmt::format("--epochs is {}; 0 is without end", arguments.epochs));
  if (arguments.pad_to < 1) throw InvalidArgument(fmt::format("--pad-to is {}", arguments.pad_to));
  if (arguments.io_threads < 1) throw InvalidArgument(fmt::format("--io-threads is {}", arguments.io_threads));
  if (!(arguments.io_limit >= 0)) throw InvalidArgument(fmt::format("--io-limit is {} MB/s", arguments.io_limit));
  parse_packing(arguments.pack);
  if (arguments.max_tokens < 0) throw InvalidArgument(fmt::format("--max-tokens is {}", arguments.max_tokens));
  if (arguments.max_tokens > 0 && arguments.job.sequence > arguments.max_tokens) {
    throw InvalidArgument(
        fmt::format("--seq is {} and --max-tokens {}, so that a sample may fit no micro-batch: raise --max-tokens, or "
                    "lower --seq, at which documents are cut",
                    arguments.job.sequence, arguments.max_tokens));
  }
  const bool is_balanced = balance_of(arguments).has_value();
  if (arguments.max_delay < 0) throw InvalidArgument(fmt::format("--max-delay is {}", arguments.max_delay));
  if (!is_balanced && (!arguments.counts.empty() || arguments.micro_order != "as-read" || arguments.max_delay > 0)) {
    throw InvalidArgument(
        "--counts, --micro-order and --max-delay are for steps that are balanced: give --balance or --max-tokens");
  }
  if (is_balanced && tail == Tail::pad) {
    throw InvalidArgument("--tail is pad, but balanced steps are not padded: it must be drop or short");
  }
  part_of_split(arguments.split, arguments.part);
  if (arguments.epochs == 0 && !arguments.steps) {
    throw InvalidArgument("--epochs 0 is without end, so --steps has to say where to stop");
  }
}

std::optional<Balance> balance_of(const DataArguments& arguments) {
  if (arguments.balance.empty() && arguments.max_tokens == 0) return std::nullopt;
  constexpr EnumName<PartSizes> names[] = {{"equal", PartSizes::equal}, {"free", PartSizes::any}, {"", PartSizes::any}};
  const auto counts = arguments.counts.empty() && arguments.max_tokens == 0 ? "equal" : arguments.counts;
  const auto cost = SampleCost::parse(arguments.balance.empty() ? "tokens" : arguments.balance);
  if (cost.kind == SampleCost::Kind::weights) throw InvalidArgument("--balance weights: a corpus has no weights");
  return Balance{.cost = cost,
                 .sizes = parse_enum("--counts", counts, names),
                 .max_tokens = arguments.max_tokens,
                 .order = parse_micro_order(arguments.micro_order),
                 .max_delay = arguments.max_delay};
}

std::int64_t samples_a_step(const Job& job, const DataArguments& arguments) {
  return arguments.job.batch * job.mesh.data_size();
}

Corpus open_data(const DataArguments& arguments, const Job& job, Tail tail, bool tell, int readers) {
  auto options = corpus_options(arguments, readers);
  report::ProgressLine line("preparing", tell);
  options.progress = shown_by(line);
  auto corpus = Corpus::open(arguments.paths, std::move(options));
  check_enough(corpus, job, arguments, tail);
  return corpus;
}

}  // namespace levada::cli
