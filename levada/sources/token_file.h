// The tokens of one file, and how to get at them from its middle.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/sources/file.h"
#include "levada/sources/source.h"
#include "levada/sources/token_writer.h"

namespace levada {

/// How far the index pass over one file is.
struct IndexProgress {
  std::string path;
  std::uint64_t bytes_done = 0, bytes_in_all = 0;
};

struct TokenFileOptions {
  std::string text_field = "text";  ///< of a .jsonl line's object
  bool skip_bad = false;            ///< leave out lines that cannot be used, and count them
  std::int64_t stride = 1024;       ///< tokens between two cuts
  std::int64_t phase = 0;           ///< position of the first cut, less than stride
  bool by_document = false;         ///< cut each document on its own, for read_document() in place of read()
  std::string cache_dir = {};       ///< where indexes are kept; empty: nowhere
  std::function<void(const IndexProgress&)> progress = {};
  /// Hears, in a sentence, why an index cannot be kept, and of waiting for another process that makes it.
  std::function<void(const std::string&)> warn = {};
  /// How files are opened: for tests, and for wrappers that throttle or try again.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
};

/// What a file holds.
struct FileContents {
  std::int64_t tokens = 0;  ///< with the one that ends each document
  std::int64_t documents = 0;
  std::int64_t bad_lines = 0;  ///< left out
  std::string digest;          ///< of the stored bytes; not of name or place

  bool operator==(const FileContents&) const = default;
};

/// What one thread reads with: memory kept from read to read, of whichever file, and counters.
struct ReadState {
  std::vector<char> buffer;
  ReadStats stats;
};

/// Documents end to end, each closed by what its format ends it with (end_of_document; in a .bin, what was stored, if
/// anything); positions count tokens from 0. Cuts, the positions phase,
/// phase + stride, ..., are where reading can begin; in a file opened by_document they are the tokens 0, stride,
/// 2 * stride, ... of each document. Any number of threads may read side by side, each with a ReadState of its own.
class TokenFile {
 public:
  virtual ~TokenFile() = default;

  virtual const std::string& path() const = 0;
  virtual const FileContents& contents() const = 0;
  /// Bytes the index pass has read; 0 if the index was cached.
  virtual std::uint64_t index_bytes() const = 0;

  /// Writes the tokens from `position`, which is 0 or a cut, until the file ends or `to` misses none. `end`, where that
  /// will be, is a cut + 1 or contents().tokens: the last token counts as a label, and the bytes before it as consumed.
  /// Throws SourceError, also where the file is plainly not what was indexed; but only check() finds every change.
  virtual void read(std::int64_t position, std::int64_t end, TokenWriter& to, ReadState& state) const = 0;

  /// Tokens of a document, its end among them: 1 for an empty one, 0 in a .bin without ends. Of a file opened
  /// by_document, as is read_document().
  virtual std::int64_t document_tokens(std::int64_t document) const = 0;
  /// Writes tokens [from, end) of a document. `from` is a multiple of the stride; `end` is one more than a multiple of
  /// it, or document_tokens(document). Else as read().
  virtual void read_document(std::int64_t document, std::int64_t from, std::int64_t end, TokenWriter& to,
                             ReadState& state) const = 0;

  /// Throws SourceError, saying what happened, if the file has been changed since it was opened.
  virtual void check() const = 0;
};

/// Opens one file, and indexes it or finds its index in the cache. Which kind it is, its name says: .jsonl (JSON
/// Lines), .txt (one document), or .bin, .idx or what stands before that (two files of Megatron-LM). Throws
/// SourceError, naming file, line and what is wrong with it; InvalidArgument for another name.
std::unique_ptr<TokenFile> open_token_file(const std::string& path, const TokenFileOptions& options);

}  // namespace levada
