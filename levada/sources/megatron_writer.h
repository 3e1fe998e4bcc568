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
  DType dtype = dtypes::int32;   ///< an integer
  bool overwrite = false;        ///< of a data set that is there already
  bool lasting = true;           ///< false: its names may be lost if power fails, until the folder is synchronized
  bool masks_loss = false;       ///< of int32: store ~token, too, as TokenFileOptions::masks_loss reads it
  mode_t mode = readable_mode;   ///< AtomicFile's
  AtomicFile::Write write = {};  ///< another one for tests
};

/// Returns the largest token that the dtype holds.
std::int64_t max_token(DType dtype);

/// A data set that appears under its name when it is finished, and not before. At no moment, not even if power fails,
/// is there an .idx beside a .bin that is not its own: what is to be overwritten loses its .idx first. Holds 4 bytes a
/// sequence and 4 a document in memory. One thread at a time. What cannot be written is a SourceError; nothing is left
/// then.
class MegatronWriter {
 public:
  /// `path`: the prefix, or either file's name. Throws InvalidArgument if the data set is there already and is not to
  /// be overwritten, or for a dtype that cannot hold tokens.
  explicit MegatronWriter(const std::string& path, MegatronWriterOptions options = {});

  /// Adds tokens to the sequence under way. Throws InvalidArgument for one that the dtype cannot hold; some of those
  /// before it may have been added.
  void append(std::span<const std::int64_t> tokens);
  void append(std::span<const std::int32_t> tokens);
  /// Ends the sequence under way, perhaps empty. One of more tokens than the format can count becomes several.
  void end_sequence();
  /// Ends the document under way, and the sequence under way if it holds tokens.
  void end_document();
  /// Ends the document under way if it holds sequences, flushes both files to the disk and renames them to their final
  /// names.
  void finish();

  const MegatronPaths& paths() const { return paths_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_sequences_.size()); }
  /// Of both files, so far.
  std::uint64_t bytes() const;

 private:
  template <typename Token>
  void append_ids(std::span<const Token> tokens);
  template <typename Token>
  [[noreturn]] void refuse(std::span<const Token> tokens) const;
  /// Stores them behind what is buffered. Returns whether the dtype holds all of them.
  template <typename Token>
  bool store(std::span<const Token> tokens);
  /// Returns the bits that any of the tokens has.
  template <typename Stored, typename Token>
  Token store_as(std::span<const Token> tokens);
  void flush();
  void write_index();

  MegatronPaths paths_;
  MegatronWriterOptions options_;
  std::size_t token_bytes_;
  AtomicFile idx_, bin_;  // In this order: the .idx is published last, and until then keeps others away.
  Bytes buffer_;
  std::size_t buffered_ = 0;
  std::int64_t tokens_ = 0, sequence_tokens_ = 0;
  std::deque<std::int32_t> lengths_;
  std::deque<std::uint32_t> document_sequences_;
  std::size_t sequences_before_ = 0;  ///< of the documents ended
};

}  // namespace levada
