#include "levada/corpus/corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/corpus/batch_reader.h"
#include "levada/corpus/cursor.h"
#include "levada/corpus/file_opener.h"
#include "levada/corpus/mix_schedule.h"
#include "levada/corpus/mix_weights.h"
#include "levada/corpus/opened_source.h"
#include "levada/corpus/packed_order.h"
#include "levada/corpus/packing.h"
#include "levada/corpus/split.h"
#include "levada/order/permutation.h"
#include "levada/tokens/entry_verifier.h"
#include "levada/tokens/token_cache.h"

namespace levada {
namespace {

/// Returns the token that ends documents, if no text was tokenized.
std::int64_t end_in_token_files(const CorpusOptions& options) {
  if (options.tokenizer && options.tokenizer->name() != "bytes") {
    return choose_end_of_document(*options.tokenizer, options.end_of_document);
  }
  std::int64_t end = -1;
  const auto* last = options.end_of_document.data() + options.end_of_document.size();
  const auto [behind, error] = std::from_chars(options.end_of_document.data(), last, end);
  if (error == std::errc() && behind == last && end >= 0) return end;
  throw InvalidArgument(
      "the files hold tokens, and the token that ends a document is unknown: pass its number (eod=, --eod) or the "
      "tokenizer");
}

}  // namespace

/// The data that does not change while samples are read.
struct Corpus::Data {
  CorpusOptions options;
  std::shared_ptr<const TokenCache> cache;  ///< keeps the tokens of texts; null if there are none
  std::vector<std::unique_ptr<const OpenedSource>> sources;
  std::unique_ptr<EntryVerifier> verifier;  ///< verifies entries of the cache; null if there is none
  std::map<std::string, std::int64_t> left_out;
  std::optional<MixWeights> weights;  ///< empty: nothing to mix
  BatchForm form;
  bool is_remote = false;  ///< whether any file has a URL
  std::string digest;
  Order order;  ///< without the weights

  Data(const CorpusMix& of, CorpusOptions given) : options(std::move(given)) {
    FileOpener opener(options);
    std::vector<std::vector<std::string>> paths;
    for (const auto& source : of.sources) {
      auto found = opener.expand(source.paths);
      paths.push_back(std::move(found.files));
      for (const auto& [end, count] : found.left_out) left_out[end] += count;
    }
    for (std::size_t k = 0; k < of.sources.size(); ++k) {
      const bool alone = of.sources.size() == 1;
      auto seed = options.shuffle_seed;
      if (seed && !alone) seed = derived_seed(*seed, k + 1);
      sources.push_back(
          std::make_unique<const OpenedSource>(of.sources[k], opener.open(paths[k]), options, alone, seed));
    }
    if (sources.size() > 1 || sources.front()->max_samples) {
      weights.emplace(MixWeights{.weights = {}, .by = options.each_once ? CorpusMix::By::samples : of.by});
      for (const auto& source : sources) {
        weights->weights.push_back(options.each_once ? static_cast<double>(source->own_samples()) : source->weight);
      }
    }
    is_remote = std::ranges::any_of(sources, [](const auto& source) { return source->files.is_remote(); });
    cache = opener.cache();
    if (cache) verifier = std::make_unique<EntryVerifier>(opener.cache());
    form = make_form(opener);
    digest = make_digest();
    order = make_order(opener.end_of_document());
  }

  BatchForm make_form(const FileOpener& opener) const {
    BatchForm made{.sequence = options.sequence,
                   .ids = options.ids,
                   .max_segments = {},
                   .attention_mask = options.attention_mask,
                   .reset_position_ids = options.reset_position_ids,
                   .reset_attention_mask = options.reset_attention_mask,
                   .eod_mask_loss = options.eod_mask_loss};
    for (const auto& source : sources) {
      made.max_segments = std::max(made.max_segments, source->samples->max_segments());
    }
    if (options.minds_ends()) made.end_of_document = cache ? opener.end_of_document() : end_in_token_files(options);
    return made;
  }

  /// Returns the weights of a run that has not been resumed.
  WeightHistory own_history() const { return weights ? WeightHistory{{0, *weights}} : WeightHistory{}; }

  std::optional<std::int64_t> cap_of(const OpenedSource& source) const {
    return options.each_once ? source.own_samples() : source.max_samples;
  }

  std::vector<double> shares_of(const MixWeights& of) const {
    auto shares = of.weights;
    if (of.by == CorpusMix::By::tokens) {
      for (std::size_t k = 0; k < shares.size(); ++k) shares[k] /= sources[k]->mean_tokens();
    }
    return shares;
  }

  std::optional<MixSchedule> schedule_of(const WeightHistory& history) const {
    if (history.empty()) return std::nullopt;
    const auto shares = shares_of(history.front().weights);
    std::vector<MixPart> parts;
    for (std::size_t k = 0; k < sources.size(); ++k) {
      parts.push_back({printable(sources[k]->name), shares[k], cap_of(*sources[k])});
    }
    MixSchedule schedule(std::move(parts), derived_seed(options.shuffle_seed.value_or(0), 0));
    for (std::size_t i = 1; i < history.size(); ++i) {
      schedule.change(history[i].first, shares_of(history[i].weights));
    }
    return schedule;
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
    std::string tokenizer = "none";
    if (cache) tokenizer = options.tokenizer->digest();
    if (cache && !options.tokenizer->is_chat()) tokenizer += fmt::format(", documents end with {}", end_of_document);
    Order properties = {{"sequence", std::to_string(options.sequence)},
                        {"tokenizer", tokenizer},
                        {"packing", "cut"},
                        {"shuffle", "no"}};
    if (options.packing == Packing::best_fit) {
      properties[2].second = fmt::format("best-fit (window {}, padded to {}, version {})", PackedOrder::window,
                                         options.pad_to, PackedOrder::version);
    }
    if (options.packing == Packing::documents) {
      properties[2].second = fmt::format("documents (padded to {}, version {})", options.pad_to, PackedOrder::version);
    }
    if (options.shuffle_seed) {
      properties.back().second = fmt::format("seed {} (permutation {})", *options.shuffle_seed, Permutation::version);
    }
    if (!options.split.empty()) {
      properties.emplace_back("split", fmt::format("{} {} (rounding 2)", fmt::join(options.split, ","), options.part));
    }
    if (!weights) return properties;
    std::vector<std::string> caps;
    for (const auto& source : sources) {
      const auto cap = cap_of(*source);
      caps.push_back(cap ? fmt::format("{}", *cap) : "none");
    }
    properties.emplace_back("caps", fmt::format("{}", fmt::join(caps, " ")));
    return properties;
  }

  Order order_by(const WeightHistory& history) const {
    auto made = order;
    add_weights(history, made);
    return made;
  }
};

/// The state that one reader of the data changes.
struct Corpus::State {
  std::shared_ptr<const Data> data;
  std::int64_t epochs = 1;
  WeightHistory history;
  Bytes order;  ///< encoded with the history, for cursors
  std::optional<MixSchedule> mix;
  std::optional<std::int64_t> size;  ///< empty: endless
  SampleWalk walk, ahead;            ///< for reading, and for announcing
  std::int64_t announced = 0;        ///< end of the samples announced last
  BatchReader reader;
  std::int64_t sized_first = 0;     ///< `first` of the last sizes()
  std::vector<StoredSample> sized;  ///< samples of the last sizes()

  State(std::shared_ptr<const Data> of, std::int64_t times)
      : data(std::move(of)),
        epochs(times),
        history(data->own_history()),
        order(encode_order(data->order_by(history))),
        mix(data->schedule_of(history)),
        size(size_of(*data, epochs, mix)),
        walk(mix, data->sources),
        ahead(walk),
        reader(data->sources, data->form, data->options.io.threads, data->verifier.get()) {}

  static std::optional<std::int64_t> size_of(const Data& data, std::int64_t epochs,
                                             const std::optional<MixSchedule>& mix) {
    constexpr auto most = std::int64_t{1} << 62;
    const auto limit = mix ? mix->size() : std::nullopt;
    if (epochs == 0) return limit;
    if (data.sequences() > most / epochs) {
      throw InvalidArgument(
          fmt::format("{} epochs of {} samples are too many to count: 0 epochs never end", epochs, data.sequences()));
    }
    const auto all = data.sequences() * epochs;
    return std::min(all, limit.value_or(all));
  }

  /// Returns how many of samples [first, first + count) exist; below 1 if none do.
  std::int64_t available(std::int64_t first, std::int64_t count) const {
    if (first < 0 || count < 1) {
      throw InvalidArgument(fmt::format("{} samples from number {} on cannot be read", count, first));
    }
    return size ? std::min(count, *size - first) : count;
  }

  std::vector<StoredSample> stored_samples(std::int64_t first, std::int64_t count) {
    std::vector<StoredSample> samples;
    for (std::int64_t i = 0; i < count; ++i) samples.push_back(walk.at(first + i));
    return samples;
  }

  StoredSample stored_sample(std::int64_t number) {
    const auto count = static_cast<std::int64_t>(sized.size());
    if (number >= sized_first && number - sized_first < count) {
      return sized[static_cast<std::size_t>(number - sized_first)];
    }
    if (number < 0 || (size && number >= *size)) {
      throw InvalidArgument(fmt::format("sample {} cannot be gathered; there are {}", number, size.value_or(0)));
    }
    return walk.at(number);
  }

  void announce(const StoredSample& sample) const { data->sources[sample.source]->samples->will_fill(sample.number); }
};

Corpus::Corpus(std::unique_ptr<State> state) : state_(std::move(state)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Corpus Corpus::open(std::vector<std::string> paths, CorpusOptions options) {
  auto mix = sources_of(std::move(paths), options);
  return open_mix(std::move(mix), std::move(options));
}

Corpus Corpus::open_mix(CorpusMix mix, CorpusOptions options) {
  levada::check(mix);
  options.check();
  for (auto& source : mix.sources) {
    if (source.name.empty()) source.name = shown_url(source.paths.front());
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
std::int64_t Corpus::stored_documents() const {
  return state_->data->sum([](const OpenedSource& source) { return source.files.stored_documents(); });
}
std::int64_t Corpus::files() const {
  return state_->data->sum([](const OpenedSource& source) { return static_cast<std::int64_t>(source.files.size()); });
}
const std::map<std::string, std::int64_t>& Corpus::left_out() const {
  return state_->data->left_out;
}
std::int64_t Corpus::segment_multiple() const {
  const auto& options = state_->data->options;
  return options.packing == Packing::cut ? 0 : options.pad_to;
}
bool Corpus::has_single_sequences() const {
  return state_->data->options.packing == Packing::documents;
}
BadPlaces Corpus::bad_lines() const {
  BadPlaces all;
  for (const auto& source : state_->data->sources) all.add(source->files.bad_lines());
  return all;
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
  const bool by_tokens = !state_->history.empty() && state_->history.back().weights.by == CorpusMix::By::tokens;
  const auto part = [&](const SourceShare& of) { return static_cast<double>(by_tokens ? of.tokens : of.samples); };
  double all = 0;
  for (const auto& share : shares) all += part(share);
  for (auto& share : shares) share.share = all > 0 ? part(share) / all : 0;
  return shares;
}

std::optional<std::int64_t> Corpus::size() const {
  return state_->size;
}

std::optional<Tree> Corpus::read(std::int64_t first, std::int64_t count, Memory& memory) {
  count = state_->available(first, count);
  if (count < 1) return std::nullopt;
  if (first + count > state_->announced) will_read(first, count);
  return state_->reader.read_rows(state_->stored_samples(first, count), memory);
}

std::vector<SampleSize> Corpus::sizes(std::int64_t first, std::int64_t count) {
  auto& state = *state_;
  state.sized = state.stored_samples(first, state.available(first, count));
  state.sized_first = first;
  std::vector<SampleSize> sizes;
  for (const auto& [source, number] : state.sized) {
    sizes.push_back(state.data->sources[source]->samples->size_of(number));
  }
  return sizes;
}

Tree Corpus::gather(std::span<const std::int64_t> samples, Memory& memory) {
  if (samples.empty()) throw InvalidArgument("gather() takes at least one sample, got none");
  std::vector<StoredSample> stored;
  for (const auto number : samples) {
    stored.push_back(state_->stored_sample(number));
    if (state_->data->is_remote && number >= state_->announced) state_->announce(stored.back());
  }
  if (state_->data->options.packing == Packing::documents) return state_->reader.read_packed_row(stored, memory);
  return state_->reader.read_rows(stored, memory);
}

void Corpus::will_read(std::int64_t first, std::int64_t count) {
  if (!state_->data->is_remote) return;
  const auto end = std::min(first + count, size().value_or(first + count));
  for (auto number = first; number < end; ++number) state_->announce(state_->ahead.at(number));
  state_->announced = end;
}

Bytes Corpus::cursor(std::int64_t next) const {
  return encode_cursor(state_->data->digest, state_->order, next);
}

std::vector<std::pair<std::string, std::string>> Corpus::identity() const {
  std::vector<std::pair<std::string, std::string>> identity{{"corpus", state_->data->digest}};
  const auto order = state_->data->order_by(state_->history);
  identity.insert(identity.end(), order.begin(), order.end());
  const auto samples = size();
  identity.emplace_back("number of samples", samples ? std::to_string(*samples) : "without end");
  const auto& form = state_->data->form;
  identity.emplace_back("dtype", std::string(form.ids.name()));
  identity.emplace_back("attention mask", form.attention_mask ? "yes" : "no");
  identity.emplace_back("resets",
                        fmt::format("positions {}, attention {}, loss {}, behind token {}", form.reset_position_ids,
                                    form.reset_attention_mask, form.eod_mask_loss, form.end_of_document));
  return identity;
}

std::int64_t Corpus::resume(ByteView cursor) {
  const auto saved = Cursor::decode(cursor);
  const auto& data = *state_->data;
  auto history = data.weights ? weights_in(saved.order) : WeightHistory{};
  if (data.weights && history.empty()) history = data.own_history();
  const auto count = [](const WeightChange& change) { return change.weights.weights.size(); };
  if (data.weights && (count(history.front()) != data.sources.size() || history.back().first > saved.next)) {
    throw CorruptMessage(0, "the cursor has weights of another number of sources, or from later samples on");
  }
  Cursor{.corpus = data.digest, .order = data.order_by(history), .next = saved.next}.expect_same(saved);
  if (const auto all = size(); all && saved.next > *all) {
    throw InvalidArgument(
        fmt::format("the cursor is at sample {}, but the data ends with sample {} (epochs: {}, samples of each: {}): "
                    "raise the epochs, or load another state",
                    saved.next, *all - 1, state_->epochs, sequences()));
  }
  if (data.weights && history.back().weights != *data.weights) {
    if (!data.options.resume_weights) {
      throw InvalidArgument(
          fmt::format("the weights of the sources are {}, but the cursor has {}: use those, or apply the new ones from "
                      "its sample {} on (--resume-weights, resume_weights=True)",
                      to_string(*data.weights), to_string(history.back().weights), saved.next));
    }
    if (history.back().first == saved.next) history.pop_back();
    history.push_back({saved.next, *data.weights});
  }
  auto mix = data.schedule_of(history);
  state_->order = encode_order(data.order_by(history));
  state_->history = std::move(history);
  state_->mix = std::move(mix);
  state_->walk = state_->ahead = SampleWalk(state_->mix, data.sources);
  state_->announced = 0;
  state_->sized.clear();
  return saved.next;
}

std::string Corpus::difference_remedy() const {
  constexpr std::size_t max_names = 4;
  std::vector<std::string> names;
  std::size_t files = 0;
  for (const auto& source : state_->data->sources) {
    files += source->files.size();
    for (std::size_t i = 0; i < source->files.size() && names.size() < max_names; ++i) {
      names.push_back(printable(source->files[i].path()));
    }
  }
  const auto more = files > names.size() ? fmt::format(" or of one of {} other files", files - names.size()) : "";
  return fmt::format(
      "the copies of {}{} that these ranks read differ: compare their sha256sum and replace the wrong one, "
      "or let one rank read (readers=\"one\", --readers one)",
      fmt::join(names, " or "), more);
}

std::string Corpus::activity() const {
  return state_->reader.activity();
}

ReadStats Corpus::stats() const {
  auto all = state_->reader.stats();
  for (const auto& source : state_->data->sources) all.prepare_bytes += source->files.prepare_bytes();
  return all;
}

}  // namespace levada
