// What one stage's part of a cursor says. It may lie.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levada/pipeline/stream.h"

namespace levada::pipeline {

/// The largest number of items that a cursor may have: the sum of two of them, and one times the number of workers, are
/// numbers too.
inline constexpr std::int64_t max_count = std::int64_t{1} << 50;

/// A cursor as it travels.
Bytes pack_cursor(const Cursor& cursor);
/// Throws CorruptMessage.
Cursor unpack_cursor(ByteView bytes);

/// Reads the dict of one stage. Borrows it.
class CursorFields {
 public:
  /// Throws InvalidArgument unless it is of the stage of that name.
  CursorFields(const Tree& fields, std::string_view stage);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Throws InvalidArgument that names the stage and what is missing or amiss; so do the others.
  const Tree& at(std::string_view name) const;
  std::int64_t count(std::string_view name) const;  ///< from 0 to max_count
  std::int64_t integer(std::string_view name) const;
  const Bytes& bytes(std::string_view name) const;
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  const Tree* find(std::string_view name) const;

  const Tree& fields_;
  std::string stage_;
};

/// The children of a list. Throws InvalidArgument, naming the stage.
const std::vector<Tree>& list_in_cursor(const Tree& tree, std::string_view stage);

}  // namespace levada::pipeline
