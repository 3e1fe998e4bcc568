// What a message says of Python's containers besides their structure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/tree/tree.h"
#include "python/src/batch/tensors.h"

namespace levada::python {

/// A batch that is a lone leaf crosses within a list of this class: a feed's batches are containers.
inline constexpr std::string_view bare = "levada:bare";
/// The mark of a leaf of pickled bytes, and of one that is an encoded Plain; tensors' marks are their TensorKind, numpy
/// arrays and all else have none.
inline constexpr char pickled = 'p';
inline constexpr char plain = 'v';
inline constexpr char unmarked = static_cast<char>(TensorKind::array);

/// That a leaf is not what it looks like: its step in the path, and what it is.
using Mark = std::pair<std::string, char>;

/// What a container's `state` holds: the marks of its leaves, in order; and what else its class needs, as a tree.
struct State {
  std::vector<Mark> marks;
  Bytes extra;

  Bytes encode() const;
  /// Throws CorruptMessage.
  static State decode(ByteView bytes);
};

/// A plain value that a Tree has no leaf for: its class, and a message of what it is made again from.
struct Plain {
  std::string type_name;
  Bytes message;

  Bytes encode() const;
  /// Throws CorruptMessage.
  static Plain decode(ByteView bytes);
};

std::string step_of(const Container& container, std::size_t child);

/// What a container's state says of its children, which are asked for in order. The container must outlive it.
class Marks {
 public:
  explicit Marks(const Container& container);
  /// Empty for one that is what it looks like.
  std::optional<char> of(std::size_t child);
  const Bytes& extra() const { return state_.extra; }

 private:
  const Container& container_;
  State state_;
  std::vector<std::size_t> by_step_;  ///< the marks in the order of their steps, equal ones as they are in the state
  std::size_t next_ = 0;
};

}  // namespace levada::python
