// Adapts a pipeline of samples to the Source interface that a feed reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/pipeline/consumer.h"
#include "levada/pipeline/cursors.h"
#include "levada/pipeline/iterator.h"
#include "levada/sources/source.h"

namespace levada::pipeline {

struct PipelineSourceOptions {
  std::int64_t epochs = 1;          ///< 0: endless
  std::string what = "a pipeline";  ///< human-readable description
};

/// A source of samples that are Trees, numbered across epochs. A batch may hold the last samples of one epoch and the
/// first of the next; an epoch without samples is the end. No random access: samples between two reads are made and
/// dropped, so it is efficient only with one reader.
class PipelineSource final : public levada::Source {
 public:
  /// `open_epoch` returns the iterator of an epoch, counted from 0. One is open at a time.
  explicit PipelineSource(std::function<IteratorPtr(std::int64_t epoch)> open_epoch,
                          PipelineSourceOptions options = {});

  /// Resumes at another run's cursor() and returns the number of the next sample. Must be called before the first
  /// read(). Throws CorruptMessage or InvalidArgument for an invalid cursor, or one of another pipeline.
  std::int64_t resume(ByteView cursor);

  std::optional<std::int64_t> size() const override;
  /// Throws as collate() does, and Unsupported for an item that is not a Tree.
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  /// `next` must not be before the first sample of the last read.
  Bytes cursor(std::int64_t next) const override;
  std::string activity() const override;
  ReadStats stats() const override { return {}; }

 private:
  void begin_epoch(std::int64_t epoch);
  std::optional<Tree> next_sample();
  bool open_next();
  Cursor mark() const;

  std::function<IteratorPtr(std::int64_t)> open_epoch_;
  PipelineSourceOptions options_;
  IteratorPtr iterator_;
  std::atomic<std::int64_t> epoch_{-1}, next_{0};  ///< position of the iterator's next sample
  std::int64_t read_in_epoch_ = 0;
  bool ended_ = false, marked_ = false;
  std::optional<Tree> last_;  ///< the sample before next_
  SnapshotLog history_;
};

/// Returns a function that opens the epochs of a pipeline that runs in separate processes.
std::function<IteratorPtr(std::int64_t epoch)> epochs_of(std::shared_ptr<Consumer> consumer);

}  // namespace levada::pipeline
