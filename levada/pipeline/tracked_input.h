// The input of a stage that has to find back to earlier positions of it.
#pragma once

#include "levada/pipeline/cursor_history.h"
#include "levada/pipeline/stage_stream.h"

namespace levada::pipeline {

/// One thread pulls; any asks where it stood.
class TrackedInput {
 public:
  TrackedInput(SettingPtr setting, int stage, StagePtr input)
      : setting_(std::move(setting)), stage_(stage), input_(std::move(input)) {}

  /// Marks where it begins; next() and at() do where nobody has. Before other threads may ask.
  void begin() const;
  std::optional<Item> next();
  /// Items pulled.
  std::int64_t position() const { return position_; }

  /// The entries of a cursor to go back to `position` with, and how many items to drop then.
  struct Point {
    std::vector<Tree> entries;
    std::int64_t skip = 0;
  };
  Point at(std::int64_t position) const;
  void keep_from(std::int64_t position) { history_.keep_from(position); }

  /// To `position`, which is `skip` behind what `entries` say. Throws InvalidArgument.
  void restore(std::span<const Tree> entries, std::int64_t position, std::int64_t skip);
  void release() { input_.reset(); }

 private:
  Cursor save() const { return input_->save(); }

  SettingPtr setting_;
  int stage_;
  StagePtr input_;
  mutable CursorHistory history_;
  std::int64_t position_ = 0, skip_ = 0;
  mutable bool begun_ = false;
};

}  // namespace levada::pipeline
