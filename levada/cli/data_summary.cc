#include "levada/cli/data_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/report/numbers.h"
#include "levada/sources/megatron_index.h"
#include "levada/sources/token_file.h"
#include "levada/sources/token_writer.h"
#include "levada/sources/utf8.h"
#include "levada/tokens/tokenize.h"

namespace levada::cli {
namespace {

constexpr std::size_t sample_bytes = 2048;
constexpr std::string_view end_of_bytes = "256";  ///< token with which the byte tokenizer ends documents
constexpr std::int64_t sample_tokens = 2048;

void expect_sample(const DataSummary& summary, std::int64_t wanted) {
  if (wanted >= 0 && wanted < summary.documents) return;
  throw InvalidArgument(fmt::format("document {} does not exist: {} has {}, numbered from 0", wanted,
                                    printable(summary.paths.front()), report::counted(summary.documents, "document")));
}

DataSummary summarise_text(const std::string& path, const SummaryOptions& options) {
  DataSummary summary{.format = "text",
                      .paths = {shown_url(path)},
                      .dtype = token_dtype(options.tokenizer->vocabulary_size()),
                      .bytes = options.open(path)->identity().size};
  const auto reader = read_text(path, options.text, options.formats, options.open);
  Texts texts;
  TokenIds tokens;
  while (reader->read(texts)) {
    options.tokenizer->encode(texts, tokens);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < texts.size(); begin = tokens.ends[i++]) {
      const auto length = static_cast<std::int64_t>(tokens.ends[i] - begin + (tokens.ends[i] > begin ? 1 : 0));
      if (summary.documents == options.sample) {
        summary.sample.tokens = length;
        summary.sample.text = texts[i].substr(0, sample_bytes);
      }
      summary.lengths.add(length);
      summary.tokens += length;
      ++summary.documents;
    }
    options.progress(reader->stored_bytes(), summary.bytes);
  }
  summary.sequences = summary.documents;
  summary.bad_lines.add(path, reader->bad_lines());
  expect_sample(summary, options.sample);
  summary.sample.document = options.sample;
  summary.sample.is_text = true;
  summary.sample.text.resize(whole_characters(summary.sample.text));
  return summary;
}

/// Returns the stored bytes of tokens [position, position + count).
std::string stored_tokens(const File& bin, const MegatronIndex& index, std::int64_t position, std::int64_t count) {
  std::string stored;
  while (count > 0) {
    const auto place = index.runs.find(position);
    const auto now = std::min(count, place.tokens);
    std::string part(index.dtype.bytes(static_cast<std::size_t>(now)), '\0');
    if (read_fully(bin, place.byte, part) < part.size()) {
      throw SourceError(fmt::format("{} was cut off while it was being read", bin.path()));
    }
    stored += part;
    position += now;
    count -= now;
  }
  return stored;
}

template <typename T>
std::vector<std::string> numbers_in(std::string_view stored) {
  std::vector<std::string> numbers;
  for (std::size_t at = 0; at < stored.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, stored.data() + at, sizeof(T));
    numbers.push_back(fmt::format("{}", number));
  }
  return numbers;
}

std::vector<std::string> numbers_of(std::string_view stored, DType dtype) {
  if (dtype == dtypes::uint8) return numbers_in<std::uint8_t>(stored);
  if (dtype == dtypes::int8) return numbers_in<std::int8_t>(stored);
  if (dtype == dtypes::int16) return numbers_in<std::int16_t>(stored);
  if (dtype == dtypes::int32) return numbers_in<std::int32_t>(stored);
  if (dtype == dtypes::int64) return numbers_in<std::int64_t>(stored);
  if (dtype == dtypes::float32) return numbers_in<float>(stored);
  if (dtype == dtypes::float64) return numbers_in<double>(stored);
  return numbers_in<std::uint16_t>(stored);
}

/// Returns the text if the tokens appear to be bytes of text: UTF-8 without control characters, and ends of documents.
std::optional<std::string> text_of(const std::vector<std::string>& numbers) {
  std::string text;
  for (const auto& number : numbers) {
    if (number == end_of_bytes) continue;
    if (number.size() > 3 || !std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; })) return {};
    const auto byte = std::stoi(number);
    const bool is_control = byte < 32 && byte != '\n' && byte != '\t' && byte != '\r' && byte != '\f';
    if (byte > 255 || is_control) return {};
    text += static_cast<char>(byte);
  }
  text.resize(whole_characters(text));
  if (!is_utf8(text)) return {};
  return text;
}

/// Throws SourceError if a token is not in the tokenizer's vocabulary.
void check_vocabulary(const std::string& path, const SummaryOptions& options) {
  const TokenFile file(path, {.vocabulary = options.tokenizer->vocabulary_size(), .open = options.open});
  constexpr std::int64_t max_tokens = 1 << 16;
  std::vector<std::int64_t> tokens(max_tokens), labels(max_tokens);
  ReadState state;
  const auto total = file.contents().tokens;
  for (std::int64_t begin = 0, end = 0; begin < total; begin = end) {
    end = std::min(begin + max_tokens, total);
    const auto row = static_cast<std::size_t>(end - begin - 1);
    TokenWriter to(IdSpan(tokens).subspan(0, row), IdSpan(labels).subspan(0, row));
    file.read(begin, end, to, state);
    options.progress(static_cast<std::uint64_t>(end), static_cast<std::uint64_t>(total));
  }
}

DataSummary summarise_megatron(const std::string& path, const SummaryOptions& options) {
  const auto paths = MegatronPaths::of(path);
  const auto idx = options.open(paths.idx);
  const auto bin = options.open(paths.bin);
  DataSummary summary{.format = "megatron",
                      .paths = {shown_url(paths.bin), shown_url(paths.idx)},
                      .bytes = bin->identity().size + idx->identity().size};
  std::int64_t begin = 0;
  const auto index =
      read_megatron_index(*idx, *bin,
                          {.on_document =
                               [&](std::int64_t tokens) {
                                 if (summary.lengths.count() < options.sample) begin += tokens;
                                 if (summary.lengths.count() == options.sample) summary.sample.tokens = tokens;
                                 summary.lengths.add(tokens);
                               },
                           .on_progress = [&](std::uint64_t done) { options.progress(done, idx->identity().size); }});
  summary.dtype = index.dtype;
  summary.documents = index.documents;
  summary.sequences = index.sequences;
  summary.tokens = index.tokens();
  summary.has_modes = index.has_modes;
  if (options.tokenizer) check_vocabulary(path, options);
  if (summary.documents == 0 && options.sample == 0) return summary;
  expect_sample(summary, options.sample);
  auto& sample = summary.sample;
  sample.document = options.sample;
  sample.numbers = numbers_of(stored_tokens(*bin, index, begin, std::min(sample.tokens, sample_tokens)), index.dtype);
  if (auto text = text_of(sample.numbers)) {
    sample.is_text = true;
    sample.text = std::move(*text);
  }
  return summary;
}

}  // namespace

DataSummary summarise(const std::string& path, const SummaryOptions& options) {
  if (is_text(path, options.formats)) return summarise_text(path, options);
  if (is_token_file(path, options.open)) return summarise_megatron(path, options);
  static_cast<void>(options.open(path));  // A missing file is a clearer error than an unknown kind.
  fail_unknown_kind(path, options.formats);
}

}  // namespace levada::cli
