// Reads samples from a corpus of text, cut and packed, on one thread, from the page cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "levada/corpus/corpus.h"
#include "levada/corpus/packed_order.h"

namespace {

using levada::Packing;

/// A file of lines with realistic document lengths, removed at the end.
class TextFile {
 public:
  TextFile() : path_(std::filesystem::temp_directory_path() / "levada-corpus-bench.jsonl") {
    std::mt19937 random(1);
    std::ofstream out(path_);
    while (out.tellp() < std::streamoff{64} << 20) {
      out << R"({"text":")";
      for (auto lines = std::exp2(static_cast<double>(random() % 100) / 10.0); lines > 0; --lines)
        out << std::string(40, 'x') << "\\n";
      out << "\"}\n";
    }
  }
  ~TextFile() { std::filesystem::remove(path_); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  std::string path() const { return path_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(std::filesystem::file_size(path_)); }

 private:
  std::filesystem::path path_;
};

class CacheDir {
 public:
  CacheDir() { clear(); }
  ~CacheDir() { clear(); }
  CacheDir(const CacheDir&) = delete;
  CacheDir& operator=(const CacheDir&) = delete;

  std::string path() const { return path_; }
  void clear() const { std::filesystem::remove_all(path_); }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / "levada-corpus-bench-cache";
};

/// Returns the same tensors for every batch, as an engine reuses its blocks.
class ReusedMemory final : public levada::Memory {
 public:
  void reserve(std::size_t) override { next_ = 0; }
  levada::Tensor empty(levada::DType dtype, const levada::Shape& shape) override {
    if (next_ == tensors_.size()) tensors_.push_back(levada::Tensor::empty(dtype, shape));
    return tensors_[next_++];
  }

 private:
  std::vector<levada::Tensor> tensors_;
  std::size_t next_ = 0;
};

/// Opens, packs, and reads each sample once, in batches of 8, all from cached tokens.
void whole_corpus(benchmark::State& state, Packing packing, std::optional<std::uint64_t> seed) {
  const TextFile file;
  const CacheDir cache;
  const levada::CorpusOptions options{.sequence = state.range(0),
                                      .shuffle_seed = seed,
                                      .packing = packing,
                                      .tokenizer = levada::byte_tokenizer(),
                                      .cache_dir = cache.path()};
  static_cast<void>(levada::Corpus::open({file.path()}, options));
  double padding = 0;
  for (auto _ : state) {
    auto corpus = levada::Corpus::open({file.path()}, options);
    padding = corpus.padding_share();
    ReusedMemory memory;
    for (std::int64_t g = 0; g + 8 <= corpus.sequences(); g += 8) benchmark::DoNotOptimize(corpus.read(g, 8, memory));
  }
  state.SetBytesProcessed(state.iterations() * file.bytes());
  state.counters["used"] = 1 - padding;
}

/// Packs documents given only their lengths; reports documents a second.
void pack_lengths(benchmark::State& state) {
  std::mt19937 random(1);
  std::vector<std::int64_t> lengths(1'000'000);
  for (auto& length : lengths)
    length = 1 + static_cast<std::int64_t>(std::exp2(4 + static_cast<double>(random() % 1000) / 100.0));
  for (auto _ : state) {
    const levada::PackedOrder order({.sequence = state.range(0)},
                                    {.documents = std::ssize(lengths),
                                     .tokens = std::reduce(lengths.begin(), lengths.end()),
                                     .visit = [&](const auto& visit) { std::ranges::for_each(lengths, visit); }});
    state.counters["used"] = static_cast<double>(order.positions()) / static_cast<double>(order.size()) /
                             static_cast<double>(state.range(0));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(lengths.size()));
}

BENCHMARK_CAPTURE(whole_corpus, cut, Packing::cut, std::nullopt)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_corpus, cut_shuffled, Packing::cut, 1)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_corpus, best_fit, Packing::best_fit, std::nullopt)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_corpus, best_fit_shuffled, Packing::best_fit, 1)->Arg(4096)->Unit(benchmark::kMillisecond);
BENCHMARK(pack_lengths)->Arg(4096)->Arg(131072)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
