// Remembers what large .idx files hold, so that later starts need not read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levada/sources/file.h"
#include "levada/sources/known_files.h"
#include "levada/sources/megatron_index.h"

namespace levada {

/// A folder with a small file for each large .idx that has been read and validated, if its sequences are in storage
/// order. The files are found by the size, the modification time and the sampled_digest() of the .idx, and the size of
/// its .bin; neither path nor owner counts. A folder that cannot be used remembers nothing. Thread-safe.
class KnownIndexes {
 public:
  /// `dir` is created by the first add().
  explicit KnownIndexes(std::string dir, std::uint64_t min_bytes = KnownFiles::large)
      : files_(std::move(dir)), min_bytes_(min_bytes) {}

  /// Returns what was remembered for an .idx with its .bin. Throws SourceError if the .idx cannot be read.
  std::optional<MegatronIndex> find(const File& idx, const File& bin) const;
  /// Remembers what read_megatron_index() has returned. `before`: the identity of the .idx before it was read. Does
  /// nothing for an .idx that is smaller than `min_bytes`, was written within the last seconds, has changed, or has
  /// sequences in another order.
  void add(const File& idx, const FileIdentity& before, const File& bin, const MegatronIndex& index) const noexcept;

 private:
  /// Returns the path of the file; nothing for an .idx that is not remembered.
  std::optional<std::string> path_of(const File& idx, const FileIdentity& identity, const File& bin) const;

  KnownFiles files_;
  std::uint64_t min_bytes_;
};

}  // namespace levada
