// Random-access reads of the tokens in Megatron-LM's .bin/.idx.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levada/sources/content_watch.h"
#include "levada/sources/file.h"
#include "levada/sources/known_indexes.h"
#include "levada/sources/megatron_index.h"
#include "levada/sources/memory_claims.h"
#include "levada/sources/source.h"
#include "levada/sources/token_writer.h"

namespace levada {

/// Progress of reading a file before its first sample.
struct PrepareProgress {
  std::string path;
  std::uint64_t bytes_done = 0, bytes_total = 0;
};

/// A contiguous range of a file's documents: from fraction `begin` to fraction `end` of their number.
struct DocumentShare {
  double begin = 0, end = 1;
};

/// Converts a fraction to a number of documents. For 1,000 documents or more, rounds to the nearest number, as
/// Megatron-LM does. For fewer, the rounding error would add up over many files, so a pseudo-random number derived from
/// `digest`, which identifies the file's content, decides whether to round up (randomized rounding; P. Raghavan, C.
/// Thompson, 1987). This number is the same for all shares of the file, so a document stays in its part regardless of
/// the other files.
std::int64_t share_of_documents(double share, std::int64_t documents, std::string_view digest);

struct TokenFileOptions {
  bool masks_loss = false;       ///< a negative stored int32 is ~token, and no loss is computed for it
  std::int64_t vocabulary = 0;   ///< every token must be below it; 0: unknown
  DocumentShare documents = {};  ///< the documents to read; documents and tokens are numbered from the first of them
  std::function<void(const PrepareProgress&)> progress = {};
  /// Spares reading an .idx that is known. May be null.
  std::shared_ptr<const KnownIndexes> known_indexes = nullptr;
  /// Shared by files that are opened concurrently.
  std::shared_ptr<MemoryClaims> memory = std::make_shared<MemoryClaims>();
  /// Opens files. Replaced by tests, and by wrappers that throttle or retry.
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
};

/// The size and digest of a file's content.
struct FileContents {
  std::int64_t tokens = 0, documents = 0;
  std::int64_t stored_documents = 0;  ///< the total, of which `documents` are the requested share
  std::string digest;                 ///< covers all stored bytes, not the path

  bool operator==(const FileContents&) const = default;
};

/// The state of one reading thread: a buffer that it reuses for all files, and counters.
struct ReadState {
  std::vector<char> buffer;
  ReadStats stats;
};

/// The stored tokens in sequence order, numbered from 0, without any added tokens. Any number of threads may read
/// concurrently, each with its own ReadState.
class TokenFile {
 public:
  /// `path`: the prefix, or the name of either file. Throws SourceError for files that cannot be opened, are damaged,
  /// or do not hold integers, and InvalidArgument if there is not enough memory for their tables.
  TokenFile(const std::string& path, const TokenFileOptions& options);

  /// Returns the path of the .bin.
  const std::string& path() const { return bin_->path(); }
  const FileContents& contents() const { return contents_; }
  /// Returns the number of bytes of the .idx that were read.
  std::uint64_t index_bytes() const { return index_bytes_; }

  /// Writes tokens [begin, end) to `to`. The last one counts as a label only; the bytes of the others count as
  /// consumed. Throws SourceError for a token that is negative, outside the vocabulary or larger than `to` can hold,
  /// and for a file that ends too early.
  void read(std::int64_t begin, std::int64_t end, TokenWriter& to, ReadState& state) const;

  /// Announces a read().
  void will_read(std::int64_t begin, std::int64_t end) const;

  /// Returns how many of the stored documents precede the requested share.
  std::int64_t first_document() const { return first_document_; }
  /// Reads the .idx again, and passes the number of tokens of each document to `visit`, in order. Throws SourceError if
  /// the .idx has changed since it was opened.
  void visit_documents(const std::function<void(std::int64_t tokens)>& visit,
                       const std::function<void(const PrepareProgress&)>& progress = {}) const;

  /// Throws SourceError that names the change if the content of the .bin has changed since it was opened. Does not read
  /// the .idx again.
  void check() const { watch_.expect_unchanged(); }

 private:
  TokenFile(const std::string& path, const TokenFileOptions& options, std::unique_ptr<const File> idx);
  void read_index(const TokenFileOptions& options);
  void keep_share(const DocumentShare& share);
  void read_run(std::uint64_t byte, std::int64_t position, std::int64_t count, TokenWriter& to, ReadState& state) const;
  bool write(std::string_view stored, TokenWriter& to) const;
  void expect_in_vocabulary(std::string_view stored, std::int64_t position) const;
  [[noreturn]] void fail_no_id(std::string_view stored, std::int64_t position, std::int64_t largest) const;

  std::uint64_t index_bytes_ = 0;
  std::unique_ptr<const File> idx_;
  FileIdentity idx_identity_;
  std::unique_ptr<const File> bin_;
  ContentWatch watch_;  ///< watches the .bin
  MegatronIndex index_;
  std::uint64_t token_bytes_ = 1;
  bool masks_loss_;
  std::int64_t vocabulary_;
  FileContents contents_;
  std::int64_t first_document_ = 0, first_token_ = 0;  ///< among all that are stored
};

}  // namespace levada
