// Megatron-LM's indexed data sets: PREFIX.bin holds tokens and nothing else, PREFIX.idx says where sequences lie in it
// and which of them make a document.
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

  /// Of a prefix, or of either file's name.
  static MegatronPaths of(const std::string& path);
};

/// Whether the name is that of a data set: .bin or .idx, or a prefix at which there is either file; at a URL, an .idx
/// that `open` finds.
bool is_token_file(const std::string& path, const std::function<std::unique_ptr<File>(const std::string&)>& open);

/// What a dtype is numbered in an .idx; empty if it cannot stand there.
std::optional<std::uint8_t> megatron_code(DType dtype);

/// An .idx without its arrays: header, and what one pass over all of it found.
struct MegatronIndex {
  DType dtype;
  std::int64_t sequences = 0, documents = 0;
  bool has_modes = false;  ///< a byte for each sequence: the kind of what it holds, in multimodal data
  TokenRuns runs{1};       ///< where in the .bin the tokens of all sequences lie, in their order
  std::string digest;      ///< of the .idx

  std::int64_t tokens() const { return runs.tokens(); }
};

/// Reads and checks an .idx against its .bin: after that every sequence is known to lie inside of the .bin.
/// `on_document` hears the number of tokens of each document, in order; `on_progress` how many bytes of the .idx are
/// read. Throws SourceError, naming the file and what is wrong with it.
MegatronIndex read_megatron_index(const File& idx, const File& bin,
                                  const std::function<void(std::int64_t)>& on_document = {},
                                  const std::function<void(std::uint64_t)>& on_progress = {});

}  // namespace levada
