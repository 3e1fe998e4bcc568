// This rank in the groups in which a Bucketer reduces. Private to this module.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "levada/reduce/bucketer.h"
#include "levada/reduce/reducer.h"

namespace levada {

/// One thread at a time.
class Members {
 public:
  struct Member {
    std::unique_ptr<Reducer> reducer;
    int number = 0;             ///< among the groups
    std::uint64_t flushes = 0;  ///< that have come after inputs of the group
    std::uint64_t inputs = 0;   ///< since the last of these: the number of the next one
  };

  explicit Members(const BucketerOptions& options) : options_(options) {}

  /// Joins the group on the first call, which is collective.
  Member& join(const std::shared_ptr<Engine>& group);
  /// Returns null for a group that has been left.
  Member* find(const Engine* group);
  struct Flushed {
    const Engine* group = nullptr;
    Reducer* reducer = nullptr;
    std::uint64_t flush = 0;  ///< its number
  };
  /// Counts a flush in the groups that have had inputs since the last one, and returns these. Ranks of a group may thus
  /// flush more often than others, for other groups that they are in.
  std::vector<Flushed> count_flush();
  /// Returns whether any group has had inputs since the last flush.
  bool have_inputs() const;
  /// Leaves and returns the groups that no one else keeps: no input can follow in them.
  std::vector<const Engine*> leave_abandoned();
  /// Reducer::trim() in all groups.
  void trim();

 private:
  const BucketerOptions& options_;
  std::map<const Engine*, Member> members_;
  int num_joined_ = 0;
};

}  // namespace levada
