// The path from text to tokens: reading, decompressing, parsing, tokenizing as bytes and writing; and the libraries'
// share of it. Each runs on one thread, from the page cache; bytes per second are of the text's file.
#include <benchmark/benchmark.h>
#include <zlib.h>
#include <zstd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "levada/tokens/byte_stream.h"
#include "levada/tokens/convert.h"
#include "levada/tokens/text_reader.h"

namespace {

namespace fs = std::filesystem;

/// Makes lines of realistic document lengths, of words that compress like text.
std::string make_lines() {
  std::mt19937 random(1);
  std::vector<std::string> words(4096);
  for (auto& word : words) {
    for (auto length = 2 + random() % 9; length > 0; --length) word += static_cast<char>('a' + random() % 26);
  }
  std::string lines;
  while (lines.size() < std::size_t{64} << 20) {
    lines += R"({"text":")";
    for (auto count = std::exp2(4 + static_cast<double>(random() % 100) / 12.5); count > 0; --count) {
      const auto rank = random() % 4096 * (random() % 4096) / 4096;  // Some words are frequent.
      lines += words[rank] + (random() % 12 == 0 ? "\\n" : " ");
    }
    lines += "\"}\n";
  }
  return lines;
}

std::string zstd_of(const std::string& text) {
  std::string compressed(::ZSTD_compressBound(text.size()), '\0');
  compressed.resize(::ZSTD_compress(compressed.data(), compressed.size(), text.data(), text.size(), 3));
  return compressed;
}

/// A folder with the text, plain and compressed.
class Folder {
 public:
  Folder() {
    fs::create_directories(path_);
    text_ = make_lines();
    write("text.jsonl", text_);
    write("text.jsonl.zst", zstd_of(text_));
    const gzFile gzip = ::gzopen(file("text.jsonl.gz").c_str(), "wb6");
    ::gzwrite(gzip, text_.data(), static_cast<unsigned>(text_.size()));
    ::gzclose(gzip);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return path_ / name; }
  std::int64_t text_bytes() const { return static_cast<std::int64_t>(text_.size()); }

 private:
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(file(name), std::ios::binary) << content;
  }

  fs::path path_ = fs::temp_directory_path() / "levada-tokens-bench";
  std::string text_;
};

const Folder& folder() {
  static const Folder made;
  return made;
}

/// Streams the content of a file in pieces and discards it.
void stream_file(benchmark::State& state, const char* name) {
  const auto path = folder().file(name);
  std::vector<char> piece(std::size_t{256} << 10);
  for (auto _ : state) {
    const auto stream = levada::open_stream(levada::open_file(path), levada::compression_of(path));
    while (stream->read(piece) > 0) benchmark::DoNotOptimize(piece.data());
  }
  state.SetBytesProcessed(state.iterations() * folder().text_bytes());
}

/// Decompresses from memory with libzstd only.
void zstd_alone(benchmark::State& state) {
  std::ifstream in(folder().file("text.jsonl.zst"), std::ios::binary);
  const std::string stored(std::istreambuf_iterator<char>(in), {});
  std::vector<char> piece(::ZSTD_DStreamOutSize());
  auto* context = ::ZSTD_createDCtx();
  for (auto _ : state) {
    ZSTD_inBuffer from{stored.data(), stored.size(), 0};
    while (from.pos < from.size) {
      ZSTD_outBuffer to{piece.data(), piece.size(), 0};
      benchmark::DoNotOptimize(::ZSTD_decompressStream(context, &to, &from));
    }
  }
  ::ZSTD_freeDCtx(context);
  state.SetBytesProcessed(state.iterations() * folder().text_bytes());
}

void read_documents(benchmark::State& state, const char* name) {
  const auto path = folder().file(name);
  for (auto _ : state) {
    const auto reader = levada::read_text(levada::open_file(path), path, {});
    levada::Texts texts;
    while (reader->read(texts)) benchmark::DoNotOptimize(texts.bytes.data());
  }
  state.SetBytesProcessed(state.iterations() * folder().text_bytes());
}

/// Runs the whole of `levada convert --append-eod`.
void convert(benchmark::State& state, const char* name) {
  const auto from = folder().file(name), to = folder().file("tokens");
  for (auto _ : state) {
    levada::convert_to_megatron({from}, to, {.end_of_document = 256, .overwrite = true});
  }
  state.SetBytesProcessed(state.iterations() * folder().text_bytes());
}

BENCHMARK_CAPTURE(stream_file, plain, "text.jsonl")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(stream_file, gzip, "text.jsonl.gz")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(stream_file, zstd, "text.jsonl.zst")->Unit(benchmark::kMillisecond);
BENCHMARK(zstd_alone)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_documents, plain, "text.jsonl")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_documents, zstd, "text.jsonl.zst")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(convert, plain, "text.jsonl")->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
