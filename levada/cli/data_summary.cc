#include "levada/cli/data_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/report/numbers.h"
#include "levada/sources/data_kind.h"
#include "levada/sources/document_reader.h"
#include "levada/sources/megatron_index.h"
#include "levada/sources/utf8.h"

namespace levada::cli {
namespace {

constexpr std::size_t sample_bytes = 2048;
constexpr std::int64_t sample_tokens = 2048;

void expect_sample(const DataSummary& summary, std::int64_t wanted) {
  if (wanted >= 0 && wanted < summary.documents) return;
  throw InvalidArgument(fmt::format("there is no document {}: {} holds {}, numbered from 0", wanted,
                                    printable(summary.paths.front()), report::counted(summary.documents, "document")));
}

DataSummary summarise_text(const std::string& path, DataKind kind, const File& file, const SummaryOptions& options) {
  DataSummary summary{.format = kind == DataKind::jsonl ? "jsonl" : "txt",
                      .paths = {path},
                      .dtype = dtypes::uint8,
                      .bytes = file.identity().size};
  std::int64_t length = 0;
  const DocumentVisitor visitor = {.on_text =
                                       [&](std::string_view text) {
                                         length += static_cast<std::int64_t>(text.size());
                                         auto& sample = summary.sample.text;
                                         const bool is_sample = summary.lengths.count() == options.sample;
                                         if (is_sample)
                                           sample +=
                                               text.substr(0, sample_bytes - std::min(sample.size(), sample_bytes));
                                       },
                                   .on_end =
                                       [&] {
                                         const auto tokens = std::exchange(length, 0) + 1;
                                         if (summary.lengths.count() == options.sample) summary.sample.tokens = tokens;
                                         summary.lengths.add(tokens);
                                         summary.tokens += tokens;
                                       }};
  TokenFileOptions reading{.text_field = options.text_field, .skip_bad = options.skip_bad};
  reading.progress = [&](const IndexProgress& at) { options.progress(at.bytes_done, at.bytes_in_all); };
  const auto counts = read_documents(file, reading, visitor);
  summary.documents = summary.sequences = counts.documents;
  summary.bad_lines = counts.bad_lines;
  expect_sample(summary, options.sample);
  summary.sample.document = options.sample;
  summary.sample.is_text = true;
  summary.sample.text.resize(whole_characters(summary.sample.text));
  return summary;
}

/// The stored bytes of tokens [position, position + count).
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

/// The text, if that is what these tokens seem to be: bytes of UTF-8 without control characters, and ends of documents.
std::optional<std::string> text_of(const std::vector<std::string>& numbers) {
  std::string text;
  for (const auto& number : numbers) {
    if (number == std::to_string(end_of_document)) continue;
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

DataSummary summarise_megatron(const std::string& path, const SummaryOptions& options) {
  const auto paths = MegatronPaths::of(path);
  const auto idx = open_file(paths.idx);
  const auto bin = open_file(paths.bin);
  DataSummary summary{
      .format = "megatron", .paths = {paths.bin, paths.idx}, .bytes = bin->identity().size + idx->identity().size};
  std::int64_t begin = 0;
  const auto index = read_megatron_index(
      *idx, *bin,
      [&](std::int64_t tokens) {
        if (summary.lengths.count() < options.sample) begin += tokens;
        if (summary.lengths.count() == options.sample) summary.sample.tokens = tokens;
        summary.lengths.add(tokens);
      },
      [&](std::uint64_t done) { options.progress(done, idx->identity().size); });
  summary.dtype = index.dtype;
  summary.documents = index.documents;
  summary.sequences = index.sequences;
  summary.tokens = index.tokens();
  summary.has_modes = index.has_modes;
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
  const auto kind = data_kind(path);
  if (kind == DataKind::megatron) return summarise_megatron(path, options);
  const auto file = open_file(path);
  if (!kind) refuse_kind(path);
  return summarise_text(path, *kind, *file, options);
}

}  // namespace levada::cli
