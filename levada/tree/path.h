// The text by which a leaf is found in its tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levada/tree/tree.h"

namespace levada {

/// `path` with one more step: ".key", quoted where it must be.
void append_key(std::string& path, const Key& key);
/// `path` with one more step: "[position]".
void append_position(std::string& path, std::size_t position);
/// One step of a path: a position, or a key as text that may, unless it was quoted, mean an integer.
struct PathStep {
  std::string text;
  std::optional<std::int64_t> integer;
  bool is_position = false;
};

/// Takes the steps off a path one after the other.
class PathReader {
 public:
  explicit PathReader(std::string_view path) : path_(path) {}
  bool done() const { return at_ == path_.size(); }
  /// What has been read so far.
  std::string_view taken() const { return path_.substr(0, at_); }
  /// The next step; empty where the text is no path.
  std::optional<PathStep> next();

 private:
  std::optional<PathStep> position();
  std::optional<PathStep> quoted();

  std::string_view path_;
  std::size_t at_ = 0;
};

}  // namespace levada
