// Megatron-LM's indexed data sets: PREFIX.bin holds only tokens; PREFIX.idx holds the positions of the sequences in it
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

  /// Returns the paths for a prefix or for the name of either file. Both keep the query of a web address.
  static MegatronPaths of(const std::string& path);
};

/// Returns whether the name is that of a data set: .bin or .idx, or a prefix for which either file exists; for a URL,
/// one whose .idx `open` finds.
bool is_token_file(const std::string& path, const std::function<std::unique_ptr<File>(const std::string&)>& open);

/// Returns the .idx code of a dtype, or nothing if the format has none.
std::optional<std::uint8_t> megatron_code(DType dtype);
/// Returns the dtype of a code, or nothing if there is none.
std::optional<DType> megatron_dtype(std::uint8_t code);

/// An .idx without its arrays: the header and the results of one pass over the file.
struct MegatronIndex {
  DType dtype;
  std::int64_t sequences = 0, documents = 0;
  bool has_modes = false;  ///< whether each sequence has a byte for its kind of content, in multimodal data
  bool in_order = false;   ///< whether the sequences follow each other in the .bin and fill it
  TokenRuns runs{1};       ///< positions in the .bin of the tokens of all sequences, in sequence order
  std::string digest;      ///< digest of the .idx

  std::int64_t tokens() const { return runs.tokens(); }
};

/// Callbacks while an .idx is read; each may be empty.
struct IndexCallbacks {
  std::function<void(std::int64_t tokens)> on_document = {};   ///< for each document, in order
  std::function<void(std::uint64_t bytes)> on_more_runs = {};  ///< before MegatronIndex::runs grows by up to `bytes`
  std::function<void(std::uint64_t bytes)> on_progress = {};   ///< with the bytes of the .idx read so far
};

/// Reads an .idx and validates it against its .bin: every sequence must be inside the .bin. Throws SourceError that
/// names the file and the fault; passes on exceptions of the callbacks.
MegatronIndex read_megatron_index(const File& idx, const File& bin, const IndexCallbacks& callbacks = {});

/// Reads the lengths of all documents from the .idx that `index` describes. Calls on_document and on_progress. Throws
/// SourceError if the .idx holds something else now; passes on exceptions of the callbacks.
void read_documents(const File& idx, const MegatronIndex& index, const IndexCallbacks& callbacks);

/// Returns the size of the .idx; nothing if a count is negative or too large.
std::optional<std::uint64_t> index_bytes_of(const MegatronIndex& index);
/// Returns the number of tokens before a document, or in all documents if `document` is their number. Reads only two
/// numbers, so the index must be in_order. Throws SourceError.
std::int64_t tokens_before(const File& idx, const MegatronIndex& index, std::int64_t document);

}  // namespace levada
