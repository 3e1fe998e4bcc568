// Files of text made into a Megatron-LM data set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/atomic_file.h"
#include "levada/sources/file.h"
#include "levada/sources/megatron_index.h"

namespace levada {

struct ConversionOptions {
  std::optional<DType> dtype;       ///< empty: the narrowest that holds all tokens
  bool append_eod = false;          ///< end each document with end_of_document
  std::string text_field = "text";  ///< of a .jsonl line's object
  bool skip_bad = false;            ///< leave out .jsonl lines that cannot be used, and count them
  bool overwrite = false;           ///< what has the name already
  /// Hears from the thread that converts, every few 100 KiB, how many bytes are read, and of how many. What it throws
  /// ends the conversion.
  std::function<void(std::uint64_t done, std::uint64_t in_all)> progress = {};
  std::function<std::unique_ptr<File>(const std::string&)> open = open_file;  ///< another one for tests
  AtomicFile::Write write = {};                                               ///< another one for tests
};

struct Conversion {
  MegatronPaths paths;
  DType dtype;
  std::int64_t documents = 0, sequences = 0, tokens = 0, bad_lines = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

/// Writes the documents of .jsonl and .txt files, in their order, as tokens of bytes to the data set at `to` (the
/// prefix, or either file's name). Reads on a thread of its own. The data set appears whole or not at all. Throws
/// InvalidArgument for what cannot be asked for, SourceError for what cannot be read or written.
Conversion convert_to_megatron(const std::vector<std::string>& from, const std::string& to,
                               const ConversionOptions& options = {});

}  // namespace levada
