// Writes Megatron-LM's indexed data sets.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/sources/megatron_index.h"

namespace levada {

struct MegatronWriterOptions {
  DType dtype = dtypes::int32;   ///< an integer type
  bool overwrite = false;        ///< whether to replace an existing data set
  bool lasting = true;           ///< false: a power failure may lose the names, until the folder is synchronized
  bool masks_loss = false;       ///< for int32: stores any number, also ~token; see TokenFileOptions::masks_loss
  mode_t mode = readable_mode;   ///< AtomicFile's
  AtomicFile::Write write = {};  ///< replacement for ::write in tests
};

/// Returns the largest token that the dtype can hold.
std::int64_t max_token(DType dtype);

/// Writes a data set that appears under its name only once it is finished. Even if power fails, an .idx is never next
/// to a .bin of another data set: when overwriting, the old .idx is removed first. Holds 4 bytes per sequence and 4 per
/// document in memory. One thread at a time. Throws SourceError if it cannot write, and leaves no files in that case.
class MegatronWriter {
 public:
  /// `path`: the prefix, or the name of either file. Throws InvalidArgument if the data set exists and overwrite is not
  /// set, or for a dtype that cannot hold tokens.
  explicit MegatronWriter(const std::string& path, MegatronWriterOptions options = {});

  /// Adds tokens to the current sequence. Throws InvalidArgument for a token that the dtype cannot hold; some of the
  /// tokens before it may have been added.
  void append(std::span<const std::int64_t> tokens);
  void append(std::span<const std::int32_t> tokens);
  /// Ends the current sequence, which may be empty. A sequence with more tokens than the format can count is split.
  void end_sequence();
  /// Ends the current document, and the current sequence if it has tokens.
  void end_document();
  /// Ends the current document if it has sequences, flushes both files to the disk and renames them to their final
  /// names.
  void finish();

  const MegatronPaths& paths() const { return paths_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_sequences_.size()); }
  /// Returns the size of both files so far.
  std::uint64_t bytes() const;

 private:
  template <typename Token>
  void append_ids(std::span<const Token> tokens);
  template <typename Token>
  [[noreturn]] void throw_out_of_range(std::span<const Token> tokens) const;
  /// Appends the tokens to the buffer. Returns whether the dtype holds all of them.
  template <typename Token>
  bool store(std::span<const Token> tokens);
  /// Returns the bitwise OR of the tokens.
  template <typename Stored, typename Token>
  Token store_as(std::span<const Token> tokens);
  void flush();
  void write_index();

  MegatronPaths paths_;
  MegatronWriterOptions options_;
  std::size_t token_bytes_;
  AtomicFile idx_, bin_;  // In this order: the .idx is published last, and until then locks out other writers.
  Bytes buffer_;
  std::size_t buffered_ = 0;
  std::int64_t tokens_ = 0, sequence_tokens_ = 0;
  std::deque<std::int32_t> lengths_;
  std::deque<std::uint32_t> document_sequences_;
  std::size_t sequences_before_ = 0;  ///< number of sequences in the finished documents
};

}  // namespace levada
