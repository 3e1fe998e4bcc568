// When buckets are filled, closed and launched: decisions alone, the same on every rank that sees the same inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace levada {

/// Which open bucket each input goes to, and when buckets close. Buckets are told apart by a key: one for each dtype
/// and group of ranks. A value: state and events, nothing running.
class Bucketing {
 public:
  /// `capacity`: bytes of a bucket, of all ranks' pieces together; zero or less: every input goes by itself.
  explicit Bucketing(std::int64_t capacity) : capacity_(capacity) {}

  /// What an input leads to, in this order.
  struct Placement {
    std::optional<int> close;  ///< the key whose bucket is launched before, since the input does not fit any more
    bool alone = false;        ///< the input is launched by itself, and waited for; no bucket closes for it
  };
  /// An input of `bytes`, of all ranks' pieces together: at most a bucket's capacity goes into the bucket of `key`,
  /// which stays open when it is exactly full.
  Placement apply(int key, std::uint64_t bytes);
  /// Undoes the last apply(), which gave no `alone`, for an input that did not come after all; what was closed stays
  /// so.
  void take_back(int key, std::uint64_t bytes);

  /// All open buckets, in the order in which they were opened; none is open afterwards.
  std::vector<int> flush();
  /// Those up to the one of `key`, in the same order: what is launched so that it is.
  std::vector<int> flush_through(int key);

  /// Bytes of the inputs in the open bucket of `key`.
  std::uint64_t open_bytes(int key) const;
  bool any_open() const { return !open_.empty(); }

 private:
  struct Open {
    int key = 0;
    std::uint64_t bytes = 0;
    int inputs = 0;
  };

  std::int64_t capacity_;
  std::vector<Open> open_;  ///< oldest first
};

}  // namespace levada
