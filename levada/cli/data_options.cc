#include "levada/cli/data_options.h"

#include <fmt/format.h>

#include "levada/base/enum_names.h"
#include "levada/base/error.h"
#include "levada/cli/command.h"
#include "levada/cli/file_list.h"
#include "levada/corpus/split.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"

namespace levada::cli {
namespace {

CorpusOptions corpus_options(const DataArguments& arguments, int readers) {
  auto options = corpus_options_of(arguments.text, arguments.chat_template, arguments.cache, arguments.extensions);
  options.sequence = arguments.job.sequence;
  if (arguments.shuffle) options.shuffle_seed = arguments.seed;
  options.epochs = arguments.epochs;
  options.each_once = arguments.eval;
  options.max_bad = arguments.max_bad;
  options.packing = parse_packing(arguments.pack);
  options.pad_to = arguments.pad_to;
  options.split = arguments.split;
  options.part = arguments.part;
  options.io.threads = arguments.io_threads;
  options.io.limit_mb_s = arguments.io_limit / readers;
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
  const auto needed = samples_per_step(job, arguments);
  const auto size = corpus.size();
  if (!size || *size >= needed) return;
  throw InvalidArgument(
      fmt::format("one step takes {} of {} tokens (batch {} x dp {}), but the data has only {}; lower --batch or "
                  "--seq, raise --epochs, or add data",
                  report::counted(needed, "sample"), arguments.job.sequence, arguments.job.batch, job.mesh.data_size(),
                  report::with_commas(*size)));
}

}  // namespace

void add_data_options(CLI::App& command, DataArguments& arguments) {
  command.option_defaults()->group("Data");
  command
      .add_option("PATH", arguments.paths,
                  "Data: .jsonl and .txt, plain or compressed (.gz, .zst); .bin with .idx (by prefix); folders; "
                  "patterns ('*.jsonl'); or a single mix.json")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_files_from(command, arguments.files_from);
  add_number(command, "--steps", arguments.steps, "N", "Maximum number of steps [all]");
  add_option(command, "--epochs", arguments.epochs, "E", "Passes over the data; 0 never ends");
  add_option(command, "--tail", arguments.tail, "HOW", "Handling of an incomplete last round: drop, pad or short");
  command.option_defaults()->group("Balance");
  command
      .add_option("--balance", arguments.balance,
                  "Cost of a sample that each step balances over the dp ranks: tokens, flops or 'flops(hidden=N)'")
      ->type_name("COST");
  add_number(command, "--max-tokens", arguments.max_tokens, "N", "Maximum number of tokens in a micro-batch");
  command
      .add_option("--counts", arguments.counts,
                  "Number of samples per rank per step: equal or free [free with --max-tokens]")
      ->type_name("HOW");
  add_number(command, "--max-delay", arguments.max_delay, "N",
             "Maximum number of steps that a long sample waits for similar ones");
  add_option(command, "--micro-order", arguments.micro_order, "HOW",
             "Order of micro-batches: as-read, long-first or paired");
  add_option(command, "--wait", arguments.wait, "WHERE",
             "Where ranks wait for each other: step (at its end) or micro (in each micro-batch)");
  add_option(command, "--max-cp", arguments.max_cp, "N",
             "Maximum number of dp x cp ranks that share a long sequence, a power of two; short ones use fewer");
  command.option_defaults()->group("Data");
  command.add_flag("--shuffle", arguments.shuffle, "Shuffle the samples anew every epoch");
  add_option(command, "--seed", arguments.seed, "S", "Seed of the shuffle");
  add_text_options(command, arguments.text);
  command.add_option("--max-bad", arguments.max_bad, "Maximum share of a text's lines that --skip-bad may skip [1]")
      ->needs(command.get_option("--skip-bad"))
      ->type_name("X");
  add_chat_template(command, arguments.chat_template);
  add_cache_options(command, arguments.cache);
  command.option_defaults()->group("Packing");
  add_option(command, "--pack", arguments.pack, "HOW",
             "Packing of documents: cut (end to end), best-fit (several whole ones) or documents (one per sample)");
  add_option(command, "--pad-to", arguments.pad_to, "N", "Multiple of tokens that packed documents are padded to");
  command.add_flag("--reset-position-ids", arguments.reset_position_ids,
                   "Restart positions at 0 after each end of document");
  command.add_flag("--reset-attention-mask", arguments.reset_attention_mask, "Restrict attention to single documents");
  command.add_flag("--eod-mask-loss", arguments.eod_mask_loss, "Set the loss mask to 0 at end-of-document tokens");
  command.option_defaults()->group("Data");
  command.add_option("--split", arguments.split, "Proportions of training, validation and test documents: 98,1,1")
      ->delimiter(',')
      ->type_name("A,B,C");
  add_option(command, "--part", arguments.part, "NAME", "Part of the split: train, valid or test");
  command.option_defaults()->group("Speed");
  add_option(command, "--io-threads", arguments.io_threads, "N", "Reading threads per reader");
  command.add_option("--io-limit", arguments.io_limit, "Maximum total rate of all readers in MB/s [no limit]")
      ->type_name("X");
}

void check_data_options(const DataArguments& arguments) {
  const auto tail = parse_tail(arguments.tail, "--tail");
  if (arguments.steps.value_or(0) < 0)
    throw InvalidArgument(fmt::format("--steps is {}; it must not be negative", *arguments.steps));
  if (arguments.epochs < 0)
    throw InvalidArgument(fmt::format("--epochs is {}; it must be 0 (endless) or positive", arguments.epochs));
  if (arguments.pad_to < 1) throw InvalidArgument(fmt::format("--pad-to is {}; it must be positive", arguments.pad_to));
  if (arguments.io_threads < 1)
    throw InvalidArgument(fmt::format("--io-threads is {}; it must be positive", arguments.io_threads));
  if (!(arguments.io_limit >= 0))
    throw InvalidArgument(fmt::format("--io-limit is {} MB/s; it must not be negative", arguments.io_limit));
  parse_packing(arguments.pack);
  if (arguments.max_tokens < 0)
    throw InvalidArgument(fmt::format("--max-tokens is {}; it must not be negative", arguments.max_tokens));
  if (arguments.max_tokens > 0 && arguments.job.sequence > arguments.max_tokens * std::max(arguments.max_cp, 1)) {
    throw InvalidArgument(
        fmt::format("--seq is {} and --max-tokens {}, so a sample may not fit into a micro-batch: raise --max-tokens "
                    "or --max-cp, or lower --seq to cut documents shorter",
                    arguments.job.sequence, arguments.max_tokens));
  }
  const bool is_balanced = balance_of(arguments).has_value();
  if (arguments.max_delay < 0)
    throw InvalidArgument(fmt::format("--max-delay is {}; it must not be negative", arguments.max_delay));
  const bool has_options = !arguments.counts.empty() || arguments.micro_order != "as-read" ||
                           arguments.wait != "step" || arguments.max_delay > 0 || arguments.max_cp != 1;
  if (!is_balanced && has_options) {
    throw InvalidArgument(
        "--counts, --micro-order, --wait, --max-cp and --max-delay apply only to balanced steps: add --balance or "
        "--max-tokens");
  }
  if (is_balanced && tail == Tail::pad) {
    throw InvalidArgument("--tail is pad, but balanced steps are not padded: it must be drop or short");
  }
  part_of_split(arguments.split, arguments.part);
  if (arguments.epochs == 0 && !arguments.steps) {
    throw InvalidArgument("--epochs 0 never ends, so it requires --steps");
  }
}

std::optional<Balance> balance_of(const DataArguments& arguments) {
  if (arguments.balance.empty() && arguments.max_tokens == 0) return std::nullopt;
  constexpr EnumName<PartSizes> names[] = {{"equal", PartSizes::equal}, {"free", PartSizes::any}};
  const std::string usual = arguments.max_tokens == 0 ? "equal" : "free";
  const auto counts = arguments.counts.empty() ? usual : arguments.counts;
  const auto cost = SampleCost::parse(arguments.balance.empty() ? "tokens" : arguments.balance);
  if (cost.kind == SampleCost::Kind::weights) throw InvalidArgument("--balance weights: a corpus has no weights");
  const Balance balance{.cost = cost,
                        .sizes = parse_enum("--counts", counts, names),
                        .max_tokens = arguments.max_tokens,
                        .order = parse_micro_order(arguments.micro_order),
                        .wait = parse_wait(arguments.wait),
                        .max_delay = arguments.max_delay,
                        .max_cp = arguments.max_cp};
  check_balance(balance);
  return balance;
}

std::int64_t samples_per_step(const Job& job, const DataArguments& arguments) {
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
