#include "levada/corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "levada/corpus/cursor.h"
#include "levada/corpus/file_opener.h"
#include "levada/corpus/mix.h"
#include "levada/corpus/packed_samples.h"
#include "levada/corpus/paths.h"
#include "levada/corpus/permutation.h"
#include "levada/corpus/read_team.h"
#include "levada/tokens/token_cache.h"

namespace levada {
namespace {

void check_epochs(std::int64_t epochs) {
  if (epochs < 0) throw InvalidArgument(fmt::format("epochs must be 0, for no end, or above, got {}", epochs));
}

void check(const CorpusOptions& options) {
  check_epochs(options.epochs);
  if (options.sequence < 1) throw InvalidArgument(fmt::format("a sequence of {} tokens is none", options.sequence));
  if (options.sequence > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(fmt::format("a sequence of {} tokens is longer than any model takes", options.sequence));
  }
  if (options.pad_to < 1 || options.sequence % options.pad_to != 0) {
    throw InvalidArgument(
        fmt::format("documents cannot be padded to multiples of {}: the sequence of {} is to divide by it",
                    options.pad_to, options.sequence));
  }
  if (options.pad_to > 1 && options.packing == Packing::cut) {
    throw InvalidArgument("only packed documents are padded to a multiple: take best-fit packing, too");
  }
}

std::unique_ptr<SampleSet> make_samples(const SourceFiles& files, const CorpusOptions& options) {
  if (options.packing == Packing::cut) return make_cut_samples(files, options.sequence);
  return std::make_unique<PackedSamples>(files, options.sequence, options.pad_to);
}

void expect_samples(const SampleSet& samples, const SourceFiles& files, const std::string& who,
                    const CorpusOptions& options) {
  if (samples.size() > 0) return;
  if (options.packing != Packing::cut) {
    throw InvalidArgument(fmt::format("{} holds only empty documents: there is nothing to pack", who));
  }
  throw InvalidArgument(
      fmt::format("{} holds {} tokens, and one sample of sequence {} takes {}: give more data or a shorter sequence",
                  who, files.tokens(), options.sequence, options.sequence + 1));
}

/// A source of the corpus.
class OpenedSource {
 public:
  OpenedSource(const CorpusSource& source, const CorpusOptions& options, FileOpener& opener, bool alone,
               std::optional<std::uint64_t> shuffle_seed)
      : name(source.name),
        weight(source.weight),
        // Tokens of the cache are not data of a folder that it lies in.
        files(opener.open(expand_paths(source.paths, options.formats, token_cache_folder(options.cache_dir)))),
        samples(make_samples(files, options)),
        seed(shuffle_seed) {
    const auto shown = printable(name);
    expect_samples(*samples, files, alone ? "the corpus" : fmt::format("the source {}", shown), options);
    most = source.max_samples;
    if (!source.max_tokens) return;
    const auto in_tokens = static_cast<std::int64_t>(static_cast<double>(*source.max_tokens) / mean_tokens());
    if (in_tokens < 1) {
      throw InvalidArgument(
          fmt::format("the source {} is to give at most {} tokens, less than a sample", shown, *source.max_tokens));
    }
    most = std::min(in_tokens, most.value_or(in_tokens));
  }

  /// Of a sample: those that have a label.
  double mean_tokens() const {
    return static_cast<double>(samples->positions()) / static_cast<double>(samples->size());
  }
  /// Samples that it holds and may give.
  std::int64_t own_samples() const { return std::min(samples->size(), most.value_or(samples->size())); }

  std::string name;
  double weight;
  SourceFiles files;
  std::unique_ptr<SampleSet> samples;
  std::optional<std::uint64_t> seed;  ///< of the order in each epoch; empty: as they are stored
  std::optional<std::int64_t> most;   ///< samples that it gives in all
};

/// The order of a source's samples, for one reader.
class SourceOrder {
 public:
  explicit SourceOrder(const OpenedSource& source) : size_(source.samples->size()), seed_(source.seed) {}

  /// Which of its stored samples the source's sample `number` is, counted over its epochs.
  std::int64_t sample_of(std::int64_t number) {
    const auto place = number % size_;
    if (!seed_) return place;
    if (epoch_ != number / size_) {
      epoch_ = number / size_;
      permutation_.emplace(size_, *seed_, static_cast<std::uint64_t>(epoch_));
    }
    return (*permutation_)(place);
  }

 private:
  std::int64_t size_;
  std::optional<std::uint64_t> seed_;
  std::optional<Permutation> permutation_;  ///< of epoch_
  std::int64_t epoch_ = -1;
};

/// Samples that lie together in their source, for rows of a batch that do so, too.
struct Run {
  std::size_t source = 0;
  std::int64_t sample = 0;
  std::size_t row = 0, rows = 1;
};

}  // namespace

Packing parse_packing(std::string_view word) {
  if (word == "cut") return Packing::cut;
  if (word == "best-fit") return Packing::best_fit;
  throw InvalidArgument(fmt::format("documents are packed cut or best-fit, not {}", printable(word)));
}

/// What does not change while samples are read.
struct Corpus::Data {
  CorpusOptions options;
  CorpusMix::By by = CorpusMix::By::samples;
  std::shared_ptr<const TokenCache> cache;  ///< keeps the tokens of texts; null if there are none
  std::vector<std::unique_ptr<const OpenedSource>> sources;
  std::optional<Mix> mix;
  BatchForm form;
  std::string digest;
  Order order;

  Data(const CorpusMix& of, CorpusOptions given) : options(std::move(given)), by(of.by) {
    FileOpener opener(options);
    for (std::size_t k = 0; k < of.sources.size(); ++k) {
      const bool alone = of.sources.size() == 1;
      auto seed = options.shuffle_seed;
      if (seed && !alone) seed = derived_seed(*seed, k + 1);
      sources.push_back(std::make_unique<const OpenedSource>(of.sources[k], options, opener, alone, seed));
    }
    if (sources.size() > 1 || sources.front()->most) mix.emplace(make_parts(), derived_seed(shuffle_seed(), 0));
    form = {.sequence = options.sequence, .most_segments = {}, .attention_mask = options.attention_mask};
    for (const auto& source : sources)
      form.most_segments = std::max(form.most_segments, source->samples->most_segments());
    cache = opener.cache();
    digest = make_digest();
    order = make_order(opener.end_of_document());
  }

  std::uint64_t shuffle_seed() const { return options.shuffle_seed.value_or(0); }

  std::vector<MixPart> make_parts() const {
    std::vector<MixPart> parts;
    for (const auto& source : sources) {
      const auto share = by == CorpusMix::By::tokens ? source->weight / source->mean_tokens() : source->weight;
      parts.push_back({printable(source->name), share, source->most});
    }
    return parts;
  }

  template <typename Of>
  std::int64_t sum(const Of& of) const {
    std::int64_t all = 0;
    for (const auto& source : sources) all += of(*source);
    return all;
  }
  std::int64_t sequences() const {
    return sum([](const OpenedSource& source) { return source.own_samples(); });
  }

  std::string make_digest() const {
    Digest sum;
    for (const auto& source : sources) {
      if (source != sources.front()) sum.update("|");
      source->files.add_to(sum);
    }
    return sum.hex();
  }

  Order make_order(std::int64_t end_of_document) const {
    const auto tokenizer =
        cache ? fmt::format("{}, documents end with {}", options.tokenizer->digest(), end_of_document) : "none";
    Order properties = {{"sequence", std::to_string(options.sequence)},
                        {"tokenizer", tokenizer},
                        {"packing", "cut"},
                        {"shuffle", "no"}};
    if (options.packing == Packing::best_fit) {
      properties[2].second = fmt::format("best-fit (window {}, padded to {}, version {})", PackedOrder::window,
                                         options.pad_to, PackedOrder::version);
    }
    if (options.shuffle_seed) {
      properties.back().second = fmt::format("seed {} (permutation {})", *options.shuffle_seed, Permutation::version);
    }
    if (!mix) return properties;
    std::vector<std::string> weights, caps;
    for (const auto& source : sources) {
      weights.push_back(fmt::format("{}", source->weight));
      caps.push_back(source->most ? fmt::format("{}", *source->most) : "none");
    }
    properties.emplace_back("weights", fmt::format("{} by {} (mix {})", fmt::join(weights, " "),
                                                   by == CorpusMix::By::tokens ? "tokens" : "samples", Mix::version));
    properties.emplace_back("caps", fmt::format("{}", fmt::join(caps, " ")));
    return properties;
  }

  Cursor cursor(std::int64_t next) const { return {.corpus = digest, .order = order, .next = next}; }
};

/// What one reader of the data changes.
struct Corpus::State {
  std::shared_ptr<const Data> data;
  std::int64_t epochs = 1;
  std::optional<std::int64_t> size;  ///< empty: without end
  std::optional<Mix> mix;
  std::vector<SourceOrder> orders;
  ReadTeam team;
  std::vector<RowReader> readers;
  std::atomic<const TokenFile*> reading = nullptr;

  State(std::shared_ptr<const Data> of, std::int64_t times)
      : data(std::move(of)),
        epochs(times),
        size(size_of(*data, epochs)),
        mix(data->mix),
        team(data->options.io.threads) {
    for (const auto& source : data->sources) orders.emplace_back(*source);
    readers.resize(static_cast<std::size_t>(team.size()));
    for (auto& reader : readers) reader.activity = &reading;
  }

  static std::optional<std::int64_t> size_of(const Data& data, std::int64_t epochs) {
    constexpr auto most = std::int64_t{1} << 62;
    const auto limit = data.mix ? data.mix->size() : std::nullopt;
    if (epochs == 0) return limit;
    if (data.sequences() > most / epochs) {
      throw InvalidArgument(fmt::format("{} epochs of {} samples are too many to count: 0 epochs are without end",
                                        epochs, data.sequences()));
    }
    const auto all = data.sequences() * epochs;
    return std::min(all, limit.value_or(all));
  }

  /// The sample that each row of a batch is, neighbours together.
  std::vector<Run> runs_of(std::int64_t first, std::int64_t count) {
    const auto threads = static_cast<std::size_t>(team.size());
    const auto longest = (static_cast<std::size_t>(count) + threads - 1) / threads;
    std::vector<Run> runs;
    for (std::int64_t row = 0; row < count; ++row) {
      const auto mixed = mix ? mix->at(first + row) : MixedSample{0, first + row};
      const auto sample = orders[mixed.source].sample_of(mixed.number);
      if (!runs.empty()) {
        auto& last = runs.back();
        const bool next = last.source == mixed.source && last.sample + static_cast<std::int64_t>(last.rows) == sample;
        if (next && last.rows < longest) {
          ++last.rows;
          continue;
        }
      }
      runs.push_back({mixed.source, sample, static_cast<std::size_t>(row), 1});
    }
    return runs;
  }

  /// A batch is given out only if the files have stayed as they are until all of it was read.
  void fill_checked(std::int64_t first, const BatchRows& rows) try {
    const auto runs = runs_of(first, static_cast<std::int64_t>(rows.rows));
    team.run(runs.size(), [&](std::size_t piece, std::size_t member) {
      const auto& run = runs[piece];
      const auto part = rows.part(run.row, run.rows);
      data->sources[run.source]->samples->fill(run.sample, part, readers[member]);
      part.fill_derived();
    });
    reading = nullptr;
    check_touched();
  } catch (const SourceError&) {
    reading = nullptr;
    check_touched();  // What happened to the file says more than what was found in it.
    throw;
  }

  void check_touched() {
    std::vector<const TokenFile*> touched;
    for (auto& reader : readers) {
      touched.insert(touched.end(), reader.touched.begin(), reader.touched.end());
      reader.touched.clear();
    }
    for (const auto* file : touched) file->check();
  }
};

Corpus::Corpus(std::unique_ptr<State> state) : state_(std::move(state)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Corpus Corpus::open(std::vector<std::string> paths, CorpusOptions options) {
  if (paths.empty()) throw InvalidArgument("a corpus needs a file: name a .jsonl or .txt");
  const auto mix_file = std::ranges::find_if(paths, is_mix_file);
  if (mix_file == paths.end()) {
    auto name = paths.front();
    return open_mix(CorpusMix{.sources = {{.name = std::move(name), .paths = std::move(paths)}}}, std::move(options));
  }
  if (paths.size() > 1) {
    throw InvalidArgument(fmt::format("{} is a mix, and stands alone: name the other files in it", *mix_file));
  }
  return open_mix(read_mix_file(*mix_file), std::move(options));
}

Corpus Corpus::open_mix(CorpusMix mix, CorpusOptions options) {
  levada::check(mix);
  check(options);
  for (auto& source : mix.sources) {
    if (source.name.empty()) source.name = source.paths.front();
  }
  const auto epochs = options.epochs;
  return Corpus(std::make_unique<State>(std::make_shared<const Data>(mix, std::move(options)), epochs));
}

Corpus Corpus::of_epochs(std::int64_t epochs) const {
  check_epochs(epochs);
  return Corpus(std::make_unique<State>(state_->data, epochs));
}

std::int64_t Corpus::sequences() const {
  return state_->data->sequences();
}
std::int64_t Corpus::tokens() const {
  return state_->data->sum([](const OpenedSource& source) { return source.files.tokens(); });
}
std::int64_t Corpus::documents() const {
  return state_->data->sum([](const OpenedSource& source) { return source.files.documents(); });
}
std::int64_t Corpus::bad_lines() const {
  return state_->data->sum([](const OpenedSource& source) { return source.files.bad_lines(); });
}
const std::string& Corpus::digest() const {
  return state_->data->digest;
}

double Corpus::padding_share() const {
  const auto used = state_->data->sum([](const OpenedSource& source) { return source.samples->positions(); });
  const auto samples = state_->data->sum([](const OpenedSource& source) { return source.samples->size(); });
  return 1 -
         static_cast<double>(used) / static_cast<double>(samples) / static_cast<double>(state_->data->options.sequence);
}

std::vector<SourceShare> Corpus::shares(std::int64_t first, std::int64_t end) const {
  if (const auto all = size()) end = std::min(end, *all);
  first = std::min(first, end);
  std::vector<std::int64_t> samples = {end - first};
  if (state_->mix) {
    samples = state_->mix->taken(end);
    const auto before = state_->mix->taken(first);
    std::ranges::transform(samples, before, samples.begin(), std::minus());
  }
  std::vector<SourceShare> shares;
  for (std::size_t k = 0; k < samples.size(); ++k) {
    const auto& source = *state_->data->sources[k];
    const auto tokens = std::llround(static_cast<double>(samples[k]) * source.mean_tokens());
    shares.push_back({source.name, samples[k], tokens, 0});
  }
  const auto part = [&](const SourceShare& of) {
    return static_cast<double>(state_->data->by == CorpusMix::By::tokens ? of.tokens : of.samples);
  };
  double all = 0;
  for (const auto& share : shares) all += part(share);
  for (auto& share : shares) share.share = all > 0 ? part(share) / all : 0;
  return shares;
}

std::optional<std::int64_t> Corpus::size() const {
  return state_->size;
}

std::optional<Tree> Corpus::read(std::int64_t first, std::int64_t count, Memory& memory) {
  if (first < 0 || count < 1) {
    throw InvalidArgument(fmt::format("{} samples from number {} on cannot be read", count, first));
  }
  if (const auto all = size()) count = std::min(count, *all - first);
  if (count < 1) return std::nullopt;
  auto batch = make_batch(state_->data->form, count, memory);
  state_->fill_checked(first, batch.rows);
  return Tree::dict(std::move(batch.fields));
}

Bytes Corpus::cursor(std::int64_t next) const {
  return state_->data->cursor(next).encode();
}

std::vector<std::pair<std::string, std::string>> Corpus::identity() const {
  std::vector<std::pair<std::string, std::string>> identity{{"corpus", state_->data->digest}};
  identity.insert(identity.end(), state_->data->order.begin(), state_->data->order.end());
  const auto samples = size();
  identity.emplace_back("number of samples", samples ? std::to_string(*samples) : "without end");
  identity.emplace_back("attention mask", state_->data->options.attention_mask ? "yes" : "no");
  return identity;
}

std::int64_t Corpus::resume(ByteView cursor) const {
  const auto saved = Cursor::decode(cursor);
  state_->data->cursor(saved.next).expect_same(saved);
  if (const auto all = size(); all && saved.next > *all) {
    throw InvalidArgument(fmt::format(
        "the cursor stands before sample {}, but the data ends with sample {} (epochs: {}, samples of each: "
        "{}): raise the epochs, or give another state",
        saved.next, *all - 1, state_->epochs, sequences()));
  }
  return saved.next;
}

std::string Corpus::activity() const {
  const auto* file = state_->reading.load();
  return file == nullptr ? "between two batches" : "reading " + file->path();
}

ReadStats Corpus::stats() const {
  ReadStats all;
  for (const auto& source : state_->data->sources) all.index_bytes += source->files.prepare_bytes();
  for (const auto& reader : state_->readers) {
    all.bytes_read += reader.state.stats.bytes_read;
    all.bytes_consumed += reader.state.stats.bytes_consumed;
  }
  return all;
}

}  // namespace levada
