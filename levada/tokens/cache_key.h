// The inputs that determine the tokens of a text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "levada/base/hash.h"
#include "levada/sources/file.h"
#include "levada/sources/token_file.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

/// Determines the tokens of a text, and how to make them.
struct TokenizeTexts {
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  std::int64_t end_of_document = 256;  ///< ignored for chats
  TextOptions text = {};               ///< text.chats must equal tokenizer->is_chat()
  int threads = 0;                     ///< 0: as many as there are cores
  /// Receives the progress over the bytes of all files being tokenized. Called by one thread at a time.
  std::function<void(const PrepareProgress&)> progress = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;
  std::vector<TextFormat> formats = {};  ///< in addition to those of read_text()
};

/// Identifies a text in the cache. Path and owner do not count, so copies share an entry.
struct CacheKey {
  /// The modification time of a text whose storage tells neither a tag nor a time.
  static constexpr std::int64_t unknown_time = -1;

  std::string text;  ///< digest of the size, the sampled bytes and everything else that determines the tokens
  std::int64_t modified_ns = 0;  ///< modification time of the text; 0 if its storage identifies content by a tag
  std::uint64_t bytes = 0;       ///< size of the text

  /// Throws SourceError for a file that is empty or cannot be read.
  static CacheKey of(const File& file, const TokenizeTexts& how);
  /// Returns the replacement for `text` if another text has the same key because the two differ only outside of the
  /// sampled bytes.
  std::string with_content(const std::string& content_digest) const;
  bool operator==(const CacheKey&) const = default;
};

/// A file whose bytes are digested as they are read. Thread-safe.
class DigestedFile final : public File {
 public:
  explicit DigestedFile(std::unique_ptr<const File> file);

  const std::string& path() const override { return file_->path(); }
  FileIdentity identity() const override { return file_->identity(); }
  void will_read(std::uint64_t offset, std::uint64_t bytes) const override { file_->will_read(offset, bytes); }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override;

  /// Returns the digest of all bytes; reads those that have not been read sequentially so far. Calls `between_reads`,
  /// which may throw to abort. Throws SourceError.
  std::string digest(const std::function<void()>& between_reads) const;

 private:
  const std::unique_ptr<const File> file_;
  mutable std::mutex mutex_;  // guards the members below
  mutable Digest digest_;
  mutable std::uint64_t digested_ = 0;
};

}  // namespace levada
