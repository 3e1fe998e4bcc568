// The bucket of each input, and the time at which buckets are launched: the same on all ranks that see the same inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace levada {

/// Assigns each input to an open bucket, and decides when buckets close. There is at most one open bucket for each key,
/// such as a group and a dtype. A value type.
class Bucketing {
 public:
  /// `capacity`: size of a bucket in bytes, counting all ranks' pieces. Zero or less: every input is launched
  /// separately.
  explicit Bucketing(std::int64_t capacity) : capacity_(capacity) {}

  /// The actions for an input, in this order.
  struct Placement {
    std::optional<int> close;  ///< launch this key's bucket, which has no room for the input
    bool alone = false;        ///< launch the input separately and wait for it, without closing a bucket
  };
  /// Places an input of `bytes`, counting all ranks' pieces. Adds it to the bucket of `key`, which belongs to `group`,
  /// unless it is larger than a bucket. A bucket that is exactly full stays open.
  Placement apply(int group, int key, std::uint64_t bytes);
  /// Undoes apply() for the last input, which must not have been launched separately. A bucket that it closed stays
  /// closed.
  void undo(int key, std::uint64_t bytes);

  /// Closes all buckets. Returns their keys in the order in which they were opened.
  std::vector<int> flush();
  /// Same for the bucket of `key` and those of its group that were opened before it. Buckets of other groups stay open,
  /// because the other ranks of those groups do not close theirs.
  std::vector<int> flush_through(int key);

  /// Returns the bytes in the open bucket of `key`; 0 if there is none.
  std::uint64_t open_bytes(int key) const;
  bool any_open() const { return !open_.empty(); }

 private:
  struct Open {
    int group = 0;
    int key = 0;
    std::uint64_t bytes = 0;
    int inputs = 0;
  };

  std::int64_t capacity_;
  std::vector<Open> open_;  ///< oldest first
};

}  // namespace levada
