// A pipeline of samples as a source that a feed reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levada/pipeline/cursors.h"
#include "levada/pipeline/iterator.h"
#include "levada/pipeline/roles.h"
#include "levada/sources/source.h"

namespace levada::pipeline {

struct PipelineSourceOptions {
  std::int64_t epochs = 1;          ///< 0: without end
  std::string what = "a pipeline";  ///< for people
};

/// Items that are Trees, each a sample, numbered through the epochs; a batch may hold the last of one epoch and the
/// first of the next. An epoch that has none is the end. No random access: what lies between two reads is made and
/// dropped, so only what one reader reads is cheap.
class PipelineSource final : public levada::Source {
 public:
  /// `open_epoch` gives the iterator of an epoch, counted from 0. One is open at a time.
  explicit PipelineSource(std::function<IteratorPtr(std::int64_t epoch)> open_epoch,
                          PipelineSourceOptions options = {});

  /// Goes on where another run's cursor() says; gives the number of that sample, to be read next. Before the first
  /// read(). Throws CorruptMessage or InvalidArgument for what is no such cursor, or of another pipeline.
  std::int64_t resume(ByteView cursor);

  std::optional<std::int64_t> size() const override;
  /// Throws as collate() does; Unsupported for an item that is no Tree.
  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override;
  /// `next` is no smaller than the first sample read last.
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
  std::atomic<std::int64_t> epoch_{-1}, next_{0};  ///< of the sample that the iterator gives next
  std::int64_t read_in_epoch_ = 0;
  bool ended_ = false, marked_ = false;
  std::optional<Tree> last_;  ///< the sample before next_
  SnapshotLog history_;
};

/// The epochs of a pipeline that has processes of its own.
std::function<IteratorPtr(std::int64_t epoch)> epochs_of(std::shared_ptr<Consumer> consumer);

}  // namespace levada::pipeline
