// This rank's membership in the groups of a Bucketer. Private to this module.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "levada/reduce/bucketer.h"
#include "levada/reduce/reducer.h"

namespace levada {

/// One thread at a time.
class Members {
 public:
  struct Member {
    std::unique_ptr<Reducer> reducer;
    int number = 0;             ///< index among the groups
    std::uint64_t inputs = 0;   ///< inputs since the last flush, which is the number of the next one
    std::uint64_t checked = 0;  ///< value of `inputs` when the running flush last compared positions
  };

  explicit Members(const BucketerOptions& options) : options_(options) {}

  /// Returns the membership in the group. The first call joins the group and is collective.
  Member& join(const std::shared_ptr<Engine>& group);
  /// Returns null for a group that has been left.
  Member* find(const Engine* group);
  /// Returns the groups with inputs since the last call within this flush.
  std::vector<std::pair<const Engine*, Reducer*>> take_unchecked();
  /// Returns whether take_unchecked() would return any group.
  bool have_unchecked() const;
  /// Restarts the numbering of inputs at 0.
  void end_flush();
  /// Leaves the groups that have no other owner, in which no input can follow, and returns them.
  std::vector<const Engine*> leave_abandoned();
  /// Calls Reducer::trim() in all groups.
  void trim();

 private:
  const BucketerOptions& options_;
  std::map<const Engine*, Member> members_;
  int num_joined_ = 0;
};

}  // namespace levada
