// Reads the documents of a file in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/memory_claims.h"
#include "levada/tokens/bad_lines.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

struct TextOptions {
  std::string text_field =
      {};                 ///< field of a .jsonl line, or column of a table; empty: "text", or "messages" for chats
  bool skip_bad = false;  ///< whether to skip and count lines that cannot be used
  bool chats = false;     ///< the field is a list, and the text is its JSON
  /// Memory that long texts are about to take. Shared by files that are read concurrently.
  std::shared_ptr<MemoryClaims> memory = std::make_shared<MemoryClaims>();

  std::string field() const {
    if (!text_field.empty()) return text_field;
    return chats ? "messages" : "text";
  }
};

/// The longest accepted .jsonl line, whose parser takes about six times as much memory, and the longest accepted .txt,
/// which is rejected earlier if its text and tokens would take more memory than is available.
inline constexpr std::uint64_t max_line_bytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t max_text_bytes = std::uint64_t{1} << 30;

/// Reads the documents of one file. Used by one thread at a time, except stored_bytes().
class TextReader {
 public:
  virtual ~TextReader() = default;

  /// Replaces `texts` with the next documents: about 64 KiB of them, or a single longer one. Returns false at the end
  /// of the file. Throws SourceError that names file and line or row.
  virtual bool read(Texts& texts) = 0;
  /// Returns the place at which the documents of the last read() begin, for messages: "a.jsonl, from line 7 on".
  virtual std::string place() const = 0;
  /// Returns the number of bytes of the stored file read so far. Thread-safe.
  virtual std::uint64_t stored_bytes() const = 0;
  /// Returns the lines skipped so far.
  virtual const BadLines& bad_lines() const = 0;
};

/// A format for files whose names end with `extension`, such as ".parquet".
struct TextFormat {
  std::string extension;
  std::function<std::unique_ptr<TextReader>(std::shared_ptr<const File> file, const TextOptions& options)> open;
};

/// Returns how many of a local file's first two lines that are not blank are JSON objects. 2: the file holds JSON
/// Lines, whatever its name. 1: it has a single line, and may also be a state or a setting, but not a mix.
int leading_json_lines(const std::string& path);

/// Returns whether the name ends with .jsonl, .ndjson, .json or .txt, optionally compressed (.gz, .zst), or with an
/// extension in `formats`.
bool is_text(const std::string& path, std::span<const TextFormat> formats = {});

/// Returns a list of those kinds for messages.
std::string text_kinds(std::span<const TextFormat> formats = {});

/// Throws InvalidArgument for a file that is neither text nor tokens.
[[noreturn]] void fail_unknown_kind(const std::string& path, std::span<const TextFormat> formats);

/// Reads a .jsonl (JSON Lines, a document per line) or a .txt (one document). Throws SourceError for an empty file and,
/// at the end, for one without documents, and InvalidArgument if there is not enough memory. `name`: the user's name
/// for the file, which decides the kind; File::path() may show less of it.
std::unique_ptr<TextReader> read_text(std::shared_ptr<const File> file, const std::string& name,
                                      const TextOptions& options);
/// The same for a file opened with `open`, in the first of `formats` that matches its name.
std::unique_ptr<TextReader> read_text(const std::string& path, const TextOptions& options,
                                      std::span<const TextFormat> formats,
                                      const std::function<std::unique_ptr<File>(const std::string&)>& open);

}  // namespace levada
