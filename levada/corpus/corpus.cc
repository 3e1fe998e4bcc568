#include "levada/corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/corpus/cursor.h"
#include "levada/corpus/permutation.h"
#include "levada/sources/index_cache.h"

namespace levada {
namespace {

void check(const std::vector<std::string>& paths, const CorpusOptions& options) {
  if (paths.empty()) throw InvalidArgument("a corpus needs a file: name a .jsonl or .txt");
  if (options.sequence < 1) throw InvalidArgument(fmt::format("a sequence of {} tokens is none", options.sequence));
  if (options.epochs < 0) throw InvalidArgument(fmt::format("{} epochs cannot be", options.epochs));
}

std::string cache_dir(const CorpusOptions& options) {
  if (!options.cache) return {};
  return options.cache_dir.empty() ? default_cache_dir() : options.cache_dir;
}

/// 0, 1, 2, ... in each row.
void fill_positions(std::span<std::int64_t> positions, std::size_t sequence) {
  for (std::size_t at = 0; at < positions.size(); at += sequence) {
    for (std::size_t i = 0; i < sequence; ++i) positions[at + i] = static_cast<std::int64_t>(i);
  }
}

/// True above the diagonal of each sample's square.
void fill_mask(std::span<bool> mask, std::size_t sequence) {
  for (std::size_t row = 0; row * sequence < mask.size(); ++row) {
    const auto line = mask.subspan(row * sequence, sequence);
    const auto visible = row % sequence + 1;
    std::fill_n(line.begin(), visible, false);
    std::fill(line.begin() + static_cast<std::ptrdiff_t>(visible), line.end(), true);
  }
}

std::size_t batch_bytes(std::int64_t count, const CorpusOptions& options) {
  const auto samples = static_cast<std::size_t>(count), sequence = static_cast<std::size_t>(options.sequence);
  const auto row = samples * sequence;
  constexpr std::size_t alignment = 64;
  const auto mask = options.attention_mask ? align_up(row * sequence, alignment) : 0;
  return 3 * align_up(row * sizeof(std::int64_t), alignment) + align_up(row * sizeof(float), alignment) + mask;
}

}  // namespace

struct Corpus::State {
  CorpusOptions options;
  std::vector<std::unique_ptr<const TokenFile>> files;
  std::vector<std::int64_t> begins = {0};  ///< position of each file's first token, and of the end
  std::int64_t sequences = 0;
  std::string digest;
  Order order;
  ReadState state;
  std::optional<Permutation> permutation;  ///< of `epoch`
  std::int64_t epoch = -1;
  std::vector<std::int64_t> wanted;  ///< sequences of this batch
  std::vector<std::size_t> touched;  ///< files of this batch
  std::atomic<const TokenFile*> reading = nullptr;

  void add_file(const std::string& path) {
    const auto stride = options.sequence;
    const auto behind_cut = begins.back() % stride;
    auto file = open_token_file(path, {.text_field = options.text_field,
                                       .skip_bad = options.skip_bad,
                                       .stride = stride,
                                       .phase = behind_cut == 0 ? 0 : stride - behind_cut,
                                       .cache_dir = cache_dir(options),
                                       .progress = options.progress,
                                       .open = options.open});
    begins.push_back(begins.back() + file->contents().tokens);
    state.stats.index_bytes += file->index_bytes();
    files.push_back(std::move(file));
  }

  std::string make_digest() const {
    Digest sum;
    for (const auto& file : files) {
      const auto& contents = file->contents();
      sum.update(fmt::format("{} {} {} {};", contents.digest, contents.tokens, contents.documents, contents.bad_lines));
    }
    return sum.hex();
  }

  Order make_order() const {
    Order properties = {
        {"sequence", std::to_string(options.sequence)}, {"tokenizer", "bytes"}, {"packing", "cut"}, {"shuffle", "no"}};
    if (options.shuffle_seed) {
      properties.back().second = fmt::format("seed {} (permutation {})", *options.shuffle_seed, Permutation::version);
    }
    return properties;
  }

  /// Which sequence sample `number` is.
  std::int64_t sequence_of(std::int64_t number) {
    const auto place = number % sequences;
    if (!options.shuffle_seed) return place;
    if (epoch != number / sequences) {
      epoch = number / sequences;
      permutation.emplace(sequences, *options.shuffle_seed, static_cast<std::uint64_t>(epoch));
    }
    return (*permutation)(place);
  }

  /// Tokens [position, end) of all files laid end to end.
  void read_tokens(std::int64_t position, std::int64_t end, TokenWriter& to) {
    auto file = static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), position) - begins.begin()) - 1;
    for (; position < end; ++file) {
      const auto stop = std::min(end, begins[file + 1]);
      reading = files[file].get();
      if (std::ranges::find(touched, file) == touched.end()) touched.push_back(file);
      files[file]->read(position - begins[file], stop - begins[file], to, state);
      position = stop;
    }
    reading = nullptr;
  }

  void check_touched() {
    for (const auto file : touched) files[file]->check();
    touched.clear();
  }

  /// A batch is given out only if the files have stayed as they are until all of it was read.
  void fill_checked(std::int64_t first, std::int64_t count, std::span<std::int64_t> tokens,
                    std::span<std::int64_t> labels) try {
    fill(first, count, tokens, labels);
    check_touched();
  } catch (const SourceError&) {
    reading = nullptr;
    check_touched();  // What happened to the file says more than what was found in it.
    throw;
  }

  void fill(std::int64_t first, std::int64_t count, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) {
    const auto length = static_cast<std::size_t>(options.sequence);
    wanted.clear();
    for (std::int64_t row = 0; row < count; ++row) wanted.push_back(sequence_of(first + row));
    for (std::size_t row = 0; row < wanted.size();) {
      // Neighbours in storage are read as one.
      std::size_t run = 1;
      while (row + run < wanted.size() && wanted[row + run] == wanted[row + run - 1] + 1) ++run;
      TokenWriter to(tokens.subspan(row * length, run * length), labels.subspan(row * length, run * length));
      const auto position = wanted[row] * options.sequence;
      read_tokens(position, position + static_cast<std::int64_t>(run * length) + 1, to);
      row += run;
    }
  }

  Cursor cursor(std::int64_t next) const { return {.corpus = digest, .order = order, .next = next}; }
};

Corpus::Corpus(std::unique_ptr<State> state) : state_(std::move(state)) {}
Corpus::Corpus(Corpus&&) noexcept = default;
Corpus& Corpus::operator=(Corpus&&) noexcept = default;
Corpus::~Corpus() = default;

Corpus Corpus::open(std::vector<std::string> paths, CorpusOptions options) {
  check(paths, options);
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  for (const auto& path : paths) state->add_file(path);
  const auto tokens = state->begins.back(), sequence = state->options.sequence;
  if (tokens <= sequence) {
    throw InvalidArgument(fmt::format(
        "the corpus holds {} tokens, and one sample of sequence {} takes {}: give more data or a shorter sequence",
        tokens, sequence, sequence + 1));
  }
  state->sequences = (tokens - 1) / sequence;
  state->digest = state->make_digest();
  state->order = state->make_order();
  return Corpus(std::move(state));
}

std::int64_t Corpus::sequences() const {
  return state_->sequences;
}
std::int64_t Corpus::tokens() const {
  return state_->begins.back();
}

std::int64_t Corpus::documents() const {
  return std::accumulate(state_->files.begin(), state_->files.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& file) { return sum + file->contents().documents; });
}

std::int64_t Corpus::bad_lines() const {
  return std::accumulate(state_->files.begin(), state_->files.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& file) { return sum + file->contents().bad_lines; });
}

const std::string& Corpus::digest() const {
  return state_->digest;
}

std::optional<std::int64_t> Corpus::size() const {
  if (state_->options.epochs == 0) return std::nullopt;
  return state_->sequences * state_->options.epochs;
}

std::optional<Tree> Corpus::read(std::int64_t first, std::int64_t count, Memory& memory) {
  if (first < 0 || count < 1) {
    throw InvalidArgument(fmt::format("{} samples from number {} on cannot be read", count, first));
  }
  const auto& options = state_->options;
  if (const auto all = size(); all && (first > *all || count > *all - first)) return std::nullopt;
  const Shape shape = {count, options.sequence};
  memory.reserve(batch_bytes(count, options));
  auto tokens = memory.empty(dtypes::int64, shape);
  auto labels = memory.empty(dtypes::int64, shape);
  auto positions = memory.empty(dtypes::int64, shape);
  auto loss_mask = memory.empty(dtypes::float32, shape);
  state_->fill_checked(first, count, tokens.mutable_as<std::int64_t>(), labels.mutable_as<std::int64_t>());
  fill_positions(positions.mutable_as<std::int64_t>(), static_cast<std::size_t>(options.sequence));
  std::ranges::fill(loss_mask.mutable_as<float>(), 1.0F);
  std::vector<std::pair<Key, Tree>> fields = {
      {"tokens", tokens}, {"labels", labels}, {"position_ids", positions}, {"loss_mask", loss_mask}};
  if (options.attention_mask) {
    auto mask = memory.empty(dtypes::boolean, {count, 1, options.sequence, options.sequence});
    fill_mask(mask.mutable_as<bool>(), static_cast<std::size_t>(options.sequence));
    fields.emplace_back("attention_mask", mask);
  }
  return Tree::dict(std::move(fields));
}

Bytes Corpus::cursor(std::int64_t next) const {
  return state_->cursor(next).encode();
}

std::int64_t Corpus::resume(ByteView cursor) const {
  const auto saved = Cursor::decode(cursor);
  state_->cursor(saved.next).expect_same(saved);
  return saved.next;
}

std::string Corpus::activity() const {
  const auto* file = state_->reading.load();
  return file == nullptr ? "between two batches" : "reading " + file->path();
}

ReadStats Corpus::stats() const {
  return state_->state.stats;
}

}  // namespace levada
