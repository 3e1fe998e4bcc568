// Converts text files to a Megatron-LM data set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/sources/file.h"
#include "levada/sources/megatron_index.h"
#include "levada/tokens/text_reader.h"
#include "levada/tokens/tokenizer.h"

namespace levada {

struct ConvertOptions {
  std::shared_ptr<const Tokenizer> tokenizer = byte_tokenizer();
  std::optional<DType> dtype;                   ///< empty: Megatron-LM's choice
  std::optional<std::int64_t> end_of_document;  ///< the token that ends each document; empty: no token
  TextOptions text = {};
  std::vector<TextFormat> formats = {};  ///< in addition to .jsonl and .txt
  int threads = 1;                       ///< threads that encode concurrently
  bool overwrite = false;                ///< whether to replace an existing data set
  /// Receives the number of bytes read and their total. Called by one thread at a time. An exception aborts the
  /// conversion.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;  ///< replaced in tests
  AtomicFile::Write write = {};                                               ///< replaced in tests
};

struct Conversion {
  MegatronPaths paths;
  DType dtype;
  std::int64_t documents = 0, sequences = 0, tokens = 0;
  BadPlaces bad_lines;  ///< skipped lines
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

/// Writes the documents of .jsonl and .txt files, in order, as tokens to the data set at `to` (the prefix, or the name
/// of either file). With the same tokenizer, special tokens and end of document, the bytes equal those of Megatron-LM's
/// preprocess_data; docs/command.md lists the flags. The data set appears complete or not at all, with the permissions
/// that all input files have in common: none for a group other than theirs, and only this user's for remote files.
/// Throws InvalidArgument for invalid options, SourceError for a file that cannot be read or written.
Conversion convert_to_megatron(const std::vector<std::string>& from, const std::string& to,
                               const ConvertOptions& options = {});

}  // namespace levada
