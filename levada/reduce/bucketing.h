// Which bucket an input goes to, and when buckets are launched: the same on all ranks that see the same inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace levada {

/// Decides which open bucket each input goes to, and when buckets close. There is at most one open bucket for each key,
/// such as a group and a dtype. A value.
class Bucketing {
 public:
  /// `capacity`: bytes of a bucket, all ranks' pieces together. Zero or less: every input is launched alone.
  explicit Bucketing(std::int64_t capacity) : capacity_(capacity) {}

  /// What to do with an input, in this order.
  struct Placement {
    std::optional<int> close;  ///< launch this key's bucket, into which the input does not fit any more
    bool alone = false;        ///< launch the input alone and wait for it; no bucket closes for it
  };
  /// Places an input of `bytes`, all ranks' pieces together. It goes into the bucket of `key`, which is one of
  /// `group`'s, unless it is larger than a bucket. A bucket that is exactly full stays open.
  Placement apply(int group, int key, std::uint64_t bytes);
  /// Takes the last input back, which was not to be launched alone. A bucket that it has closed stays closed.
  void take_back(int key, std::uint64_t bytes);

  /// Closes all buckets. Returns their keys in the order in which they were opened.
  std::vector<int> flush();
  /// The same, for the bucket of `key` and those of its group that were opened before it: the ranks of other groups do
  /// not close theirs.
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
