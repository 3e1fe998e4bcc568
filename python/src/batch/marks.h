// Information on Python's containers that a message carries in addition to their structure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/tree/tree.h"
#include "python/src/batch/tensors.h"

namespace levada::python {

/// The class of the list that carries a batch that is a single leaf: a feed's batches are containers.
inline constexpr std::string_view bare = "levada:bare";
/// The marks of a leaf of pickled bytes and of a leaf that is an encoded Plain. A tensor's mark is its TensorKind;
/// numpy arrays and all other leaves are unmarked.
inline constexpr char pickled = 'p';
inline constexpr char plain = 'v';
inline constexpr char unmarked = static_cast<char>(TensorKind::array);

/// A leaf that is not what it appears to be: its step in the path, and its actual kind.
using Mark = std::pair<std::string, char>;

/// The content of a container's `state`: the marks of its leaves, in order, and the other data that its class needs, as
/// a tree.
struct State {
  std::vector<Mark> marks;
  Bytes extra;

  Bytes encode() const;
  /// Throws CorruptMessage.
  static State decode(ByteView bytes);
};

/// A plain value for which a Tree has no leaf: its class, and a message from which it is rebuilt.
struct Plain {
  std::string type_name;
  Bytes message;

  Bytes encode() const;
  /// Throws CorruptMessage.
  static Plain decode(ByteView bytes);
};

std::string step_of(const Container& container, std::size_t child);

/// The marks in a container's state. Children must be queried in order. The container must outlive it.
class Marks {
 public:
  explicit Marks(const Container& container);
  /// Returns the mark of a child, or nothing if it is unmarked.
  std::optional<char> of(std::size_t child);
  const Bytes& extra() const { return state_.extra; }

 private:
  const Container& container_;
  State state_;
  std::vector<std::size_t> by_step_;  ///< the marks sorted by step; equal ones in their order in the state
  std::size_t next_ = 0;
};

}  // namespace levada::python
