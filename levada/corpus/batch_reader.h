// Reads the samples of a batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/corpus/batch_rows.h"
#include "levada/corpus/opened_source.h"
#include "levada/corpus/sample_set.h"
#include "levada/corpus/thread_pool.h"
#include "levada/sources/source.h"
#include "levada/tokens/entry_verifier.h"

namespace levada {

/// Fills batches with a few threads. Used by one thread at a time, except that any thread may call activity(). A batch
/// is returned only if the files have not changed until all of it was read.
class BatchReader {
 public:
  /// Borrows the sources, the form and the verifier of the files that are read; a null verifier verifies nothing.
  BatchReader(const std::vector<std::unique_ptr<const OpenedSource>>& sources, const BatchForm& form, int threads,
              EntryVerifier* verifier);

  /// Returns a batch with one row per sample. Throws SourceError.
  Tree read_rows(std::span<const StoredSample> samples, Memory& memory);
  /// Returns a batch of one row, with one segment per sample. Samples must be single documents. Throws SourceError;
  /// InvalidArgument if cu_seqlens cannot represent the length of the row.
  Tree read_packed_row(std::span<const StoredSample> samples, Memory& memory);

  std::string activity() const;
  ReadStats stats() const;  ///< counts only reads of samples

 private:
  void fill_checked(std::size_t pieces, const std::function<void(std::size_t, RowReader&)>& fill);
  void check_touched();

  const std::vector<std::unique_ptr<const OpenedSource>>& sources_;
  const BatchForm& form_;
  EntryVerifier* const verifier_;
  ThreadPool pool_;
  std::vector<RowReader> readers_;
  std::atomic<const TokenFile*> reading_ = nullptr;
};

}  // namespace levada
