// Makes the orders of packed samples, and remembers large ones, so that later starts need not pack again.
#pragma once

#include <functional>
#include <string>

#include "levada/corpus/packed_order.h"
#include "levada/corpus/source_files.h"
#include "levada/sources/known_files.h"

namespace levada {

/// A folder with a file for the order of each large source. The files are found by the contents of the source, whatever
/// its paths, and by the PackingOptions. Thread-safe.
class KnownOrders {
 public:
  using Progress = std::function<void(const PrepareProgress&)>;

  /// Orders of fewer than `min_bytes` are made in memory at each start. `warn` receives a line about a long wait.
  explicit KnownOrders(std::string dir, std::function<void(const std::string&)> warn = {},
                       std::uint64_t min_bytes = KnownFiles::large)
      : known_(std::move(dir)), warn_(std::move(warn)), min_bytes_(min_bytes) {}

  /// Returns the order of the documents in `files`: from the folder, or made and then remembered. If the folder cannot
  /// be used, the order is made in memory. Waits while another process makes the same order. Throws SourceError, and
  /// InvalidArgument if there is too little memory.
  PackedOrder order_of(const SourceFiles& files, const PackingOptions& options, const Progress& progress) const;

 private:
  std::optional<PackedOrder> find(const std::string& path, const std::string& key, const PackingOptions& options) const;
  /// Returns nothing if the folder cannot be used.
  std::optional<PackedOrder> find_or_write(const std::string& path, const std::string& key,
                                           const PackingOptions& options, const PackedDocuments& documents,
                                           const Progress& progress) const;

  KnownFiles known_;
  std::function<void(const std::string&)> warn_;
  std::uint64_t min_bytes_;
};

}  // namespace levada
