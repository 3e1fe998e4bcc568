// Paths: text that locates a leaf in its tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levada/tree/tree.h"

namespace levada {

/// Appends one step, ".key", quoted if necessary.
void append_key(std::string& path, const Key& key);
/// Appends one step, "[position]".
void append_position(std::string& path, std::size_t position);
/// One step of a path: a position, or a key as text, which may mean an integer unless it was quoted.
struct PathStep {
  std::string text;
  std::optional<std::int64_t> integer;
  bool is_position = false;
};

/// Reads the steps of a path one by one.
class PathReader {
 public:
  explicit PathReader(std::string_view path) : path_(path) {}
  bool done() const { return at_ == path_.size(); }
  /// Returns the part read so far.
  std::string_view taken() const { return path_.substr(0, at_); }
  /// Returns the next step, or nothing if the text is not a path.
  std::optional<PathStep> next();

 private:
  std::optional<PathStep> position();
  std::optional<PathStep> quoted();

  std::string_view path_;
  std::size_t at_ = 0;
};

}  // namespace levada
