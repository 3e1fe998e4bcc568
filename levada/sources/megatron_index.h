// Megatron-LM's indexed data sets: PREFIX.bin holds tokens alone; PREFIX.idx holds the positions of the sequences in it
// and groups them into documents.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "levada/sources/file.h"
#include "levada/sources/token_runs.h"
#include "levada/tensor/dtype.h"

namespace levada {

/// The two files of a data set.
struct MegatronPaths {
  std::string bin, idx;

  /// Returns the paths for a prefix or for either file's name.
  static MegatronPaths of(const std::string& path);
};

/// Whether the name is that of a data set: .bin or .idx, or a prefix at which there is either file; at a URL, an .idx
/// that `open` finds.
bool is_token_file(const std::string& path, const std::function<std::unique_ptr<File>(const std::string&)>& open);

/// Returns the number of a dtype in an .idx; empty if the format has none for it.
std::optional<std::uint8_t> megatron_code(DType dtype);

/// An .idx without its arrays: header, and what one pass over all of it found.
struct MegatronIndex {
  DType dtype;
  std::int64_t sequences = 0, documents = 0;
  bool has_modes = false;  ///< a byte for each sequence: the kind of what it holds, in multimodal data
  TokenRuns runs{1};       ///< positions in the .bin of the tokens of all sequences, in their order
  std::string digest;      ///< of the .idx

  std::int64_t tokens() const { return runs.tokens(); }
};

/// What is called while an .idx is read; each may be empty.
struct IndexCallbacks {
  std::function<void(std::int64_t documents)> on_start = {};   ///< once, before the first document
  std::function<void(std::int64_t tokens)> on_document = {};   ///< for each document, in order
  std::function<void(std::uint64_t bytes)> on_more_runs = {};  ///< before MegatronIndex::runs take up to `bytes` more
  std::function<void(std::uint64_t bytes)> on_progress = {};   ///< with the bytes of the .idx read so far
};

/// Reads an .idx and validates it against its .bin: every sequence is inside the .bin. Throws SourceError, naming the
/// file and the fault, and what the callbacks throw.
MegatronIndex read_megatron_index(const File& idx, const File& bin, const IndexCallbacks& callbacks = {});

}  // namespace levada
