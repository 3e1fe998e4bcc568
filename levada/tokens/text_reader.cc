#include "levada/tokens/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <utility>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/sources/utf8.h"
#include "levada/tokens/byte_stream.h"
#include "levada/tokens/jsonl_line.h"
#include "levada/tokens/line_reader.h"

namespace levada {
namespace {

/// Small enough to stay in a cache between decoding and encoding, large relative to the cost of a call.
constexpr std::size_t batch_bytes = std::size_t{64} << 10;

/// Returns what a file is instead of UTF-8, with the remedy, if its first bytes tell; otherwise an empty text.
std::string_view other_form(std::string_view begin) {
  if (begin.starts_with("\x1f\x8b")) return "is compressed with gzip: end its name with .gz";
  if (begin.starts_with("\x28\xb5\x2f\xfd")) return "is compressed with zstd: end its name with .zst";
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff")) return "is UTF-16: convert it to UTF-8";
  return {};
}

class JsonlReader final : public TextReader {
 public:
  JsonlReader(std::string path, std::unique_ptr<ByteStream> stream, const TextOptions& options)
      : path_(std::move(path)),
        stream_(std::move(stream)),
        lines_(*stream_, max_line_bytes, line_padding),
        parser_(options.field(), options.chats),
        skip_bad_(options.skip_bad) {}

  bool read(Texts& texts) override {
    texts.clear();
    first_line_ = 0;
    while (texts.bytes.size() < batch_bytes) {
      auto line = lines_.next();
      if (!line) {
        expect_documents();
        break;
      }
      add(*line, texts);
      if (first_line_ == 0 && texts.size() > 0) first_line_ = line->number;
    }
    stored_bytes_ = stream_->stored_bytes();
    return texts.size() > 0;
  }
  std::string place() const override { return fmt::format("{}, from line {} on", path_, first_line_); }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }
  const BadLines& bad_lines() const override { return bad_lines_; }

 private:
  void add(const Line& line, Texts& texts) try {
    if (line.too_long) {
      throw BadLine(fmt::format("it is longer than {}, the maximum of a line", format_bytes(max_line_bytes)),
                    "cut it into several lines");
    }
    if (is_blank(line.text)) return;
    texts.add(parser_.text(line.text));
    ++documents_;
  } catch (const BadLine& error) {
    if (!skip_bad_) {
      const auto other = other_form(line.number == 1 ? line.text : std::string_view());
      if (!other.empty()) throw SourceError(fmt::format("{} {}", path_, other));
      throw SourceError(
          fmt::format("{}:{}: the line cannot be used: {}; {}, or skip such lines (skip_bad=True, --skip-bad)", path_,
                      line.number, error.what(), error.remedy()));
    }
    bad_lines_.add(static_cast<std::int64_t>(line.number));
  }

  void expect_documents() const {
    if (documents_ > 0) return;
    throw SourceError(
        bad_lines_.count > 0
            ? fmt::format("{} holds no documents: all of its {} lines are bad; fix the file or leave it out", path_,
                          bad_lines_.count)
            : fmt::format("{} holds no documents: it has only white space; omit it", path_));
  }

  std::string path_;
  std::unique_ptr<ByteStream> stream_;
  LineReader lines_;
  JsonlParser parser_;
  bool skip_bad_;
  std::uint64_t first_line_ = 0;
  std::int64_t documents_ = 0;
  BadLines bad_lines_;
  std::atomic<std::uint64_t> stored_bytes_ = 0;
};

/// A text's bytes, its tokens, and the copy made when the buffer grows.
constexpr std::uint64_t memory_per_byte = 6;

/// Reads a whole file as one document.
class PlainReader final : public TextReader {
 public:
  PlainReader(std::string path, std::unique_ptr<ByteStream> stream, std::shared_ptr<MemoryClaims> memory)
      : path_(std::move(path)), stream_(std::move(stream)), memory_(std::move(memory)), claim_(*memory_) {}

  bool read(Texts& texts) override {
    texts.clear();
    if (std::exchange(is_read_, true)) return false;
    texts.bytes = {};
    std::size_t held = 0;
    while (true) {
      if (held == texts.bytes.size()) grow(texts.bytes);
      const auto got = stream_->read(std::span(texts.bytes).subspan(held));
      if (got == 0) break;
      held += got;
      stored_bytes_ = stream_->stored_bytes();
      if (held > max_text_bytes) {
        throw SourceError(fmt::format(
            "{} is longer than {}, the maximum of one document: cut it into documents, one per line of a .jsonl", path_,
            format_bytes(max_text_bytes)));
      }
    }
    texts.bytes.resize(held);
    if (!is_utf8(texts.bytes)) {
      const auto other = other_form(texts.bytes);
      if (!other.empty()) throw SourceError(fmt::format("{} {}", path_, other));
      throw SourceError(fmt::format("{} is not UTF-8 at byte {}: convert it to UTF-8, or leave it out", path_,
                                    first_bad_byte(texts.bytes)));
    }
    texts.ends.push_back(held);
    return true;
  }
  std::string place() const override { return path_; }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }
  const BadLines& bad_lines() const override { return bad_lines_; }

 private:
  /// Grows the buffer by a quarter. A .gz of a megabyte may hold a gigabyte, so the size is not known in advance.
  void grow(std::string& bytes) {
    const auto before = bytes.size();
    const auto after = before + std::max(before / 4, batch_bytes);
    claim_.settle(before - std::exchange(settled_, before));  // The buffer is full, and no longer available.
    claim_.add((after - before) * memory_per_byte, fmt::format("tokenizing {}", path_),
               ", or cut the text into documents, one per line of a .jsonl");
    bytes.resize(after);
  }

  std::string path_;
  std::unique_ptr<ByteStream> stream_;
  std::shared_ptr<MemoryClaims> memory_;
  MemoryClaims::Claim claim_;
  std::size_t settled_ = 0;
  bool is_read_ = false;
  const BadLines bad_lines_ = {};
  std::atomic<std::uint64_t> stored_bytes_ = 0;
};

const TextFormat* format_of(std::string_view name, std::span<const TextFormat> formats) {
  const auto format =
      std::ranges::find_if(formats, [&](const TextFormat& each) { return name.ends_with(each.extension); });
  return format == formats.end() ? nullptr : &*format;
}

bool has_text_name(std::string_view name, std::span<const TextFormat> formats) {
  std::string rest;
  compression_of(std::string(name), &rest);
  constexpr std::string_view ends[] = {".jsonl", ".ndjson", ".json", ".txt"};
  return std::ranges::any_of(ends, [&](std::string_view end) { return rest.ends_with(end); }) ||
         format_of(name, formats) != nullptr;
}

/// Returns the part of a path that ends with the file's extension. A web address may have it before its query or, as in
/// download?file=a.jsonl, at its end.
std::string_view name_in(std::string_view path, std::span<const TextFormat> formats) {
  const auto name = without_query(path);
  return has_text_name(name, formats) ? name : path;
}

}  // namespace

int leading_json_lines(const std::string& path) {
  if (is_url(path)) return 0;
  std::ifstream file(path, std::ios::binary);
  // Skips blank lines, and byte order marks, as the reader of JSON Lines does.
  const auto line = [&]() -> std::optional<std::string> {
    constexpr std::size_t max_bytes = max_line_bytes;
    constexpr std::string_view blank = " \t\r", byte_order_mark = "\xef\xbb\xbf";
    while (file) {
      std::string read;
      for (char c = 0; read.size() < max_bytes && file.get(c) && c != '\n';) read += c;
      if (read.starts_with(byte_order_mark)) read.erase(0, byte_order_mark.size());
      const auto begin = read.find_first_not_of(blank);
      if (begin != read.npos) return read.substr(begin, read.find_last_not_of(blank) + 1 - begin);
    }
    return std::nullopt;
  };
  const auto is_object = [](const std::optional<std::string>& text) { return text && text->starts_with('{'); };
  const auto first = line();
  if (!is_object(first) || !first->ends_with('}')) return 0;
  const auto second = line();
  if (is_object(second)) return 2;
  return !second && first->find("\"sources\"") == first->npos ? 1 : 0;
}

bool is_text(const std::string& path, std::span<const TextFormat> formats) {
  return has_text_name(name_in(path, formats), formats);
}

std::string text_kinds(std::span<const TextFormat> formats) {
  std::string kinds = ".jsonl, .ndjson, .json of lines, .txt (compressed too: .gz, .zst)";
  for (const auto& format : formats) kinds += ", " + format.extension;
  return kinds;
}

void fail_unknown_kind(const std::string& path, std::span<const TextFormat> formats) {
  const auto* hint = formats.empty() && path.ends_with(".parquet") ? "; the Python package reads Parquet" : "";
  throw InvalidArgument(fmt::format("{} is of unknown kind: a corpus reads {}, and .bin with .idx{}", printable(path),
                                    text_kinds(formats), hint));
}

std::unique_ptr<TextReader> read_text(std::shared_ptr<const File> file, const std::string& name,
                                      const TextOptions& options) {
  const auto path = file->path();
  if (file->identity().size == 0) throw SourceError(fmt::format("{} is empty: leave it out", path));
  std::string kind;
  const auto compression = compression_of(std::string(name_in(name, {})), &kind);
  if (kind.ends_with(".txt") && options.chats) {
    throw InvalidArgument(fmt::format("{} is a .txt, which holds no chats: put them into a .jsonl", path));
  }
  auto stream = open_stream(std::move(file), compression, options.memory);
  if (kind.ends_with(".txt")) return std::make_unique<PlainReader>(path, std::move(stream), options.memory);
  return std::make_unique<JsonlReader>(path, std::move(stream), options);
}

std::unique_ptr<TextReader> read_text(const std::string& path, const TextOptions& options,
                                      std::span<const TextFormat> formats,
                                      const std::function<std::unique_ptr<File>(const std::string&)>& open) {
  const auto* format = format_of(name_in(path, formats), formats);
  return format != nullptr ? format->open(open(path), options) : read_text(open(path), path, options);
}

}  // namespace levada
