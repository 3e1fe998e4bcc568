#include "levada/reduce/members.h"

#include <algorithm>
#include <utility>

namespace levada {
namespace {

/// Maximum number of a rank's messages that others have not received yet.
constexpr int reducer_window = 64;

}  // namespace

Members::Member& Members::join(const std::shared_ptr<Engine>& group) {
  if (Member* const known = find(group.get())) return *known;
  auto reducer = std::make_unique<Reducer>(group, Reducer::Options{.name = options_.name,
                                                                   .window = reducer_window,
                                                                   .timeout = options_.timeout,
                                                                   .poll = options_.poll,
                                                                   .job_rank = options_.job_rank});
  return members_.emplace(group.get(), Member{.reducer = std::move(reducer), .number = num_joined_++}).first->second;
}

Members::Member* Members::find(const Engine* group) {
  const auto found = members_.find(group);
  return found == members_.end() ? nullptr : &found->second;
}

std::vector<std::pair<const Engine*, Reducer*>> Members::take_unchecked() {
  std::vector<std::pair<const Engine*, Reducer*>> unchecked;
  for (auto& [group, member] : members_) {
    if (std::exchange(member.checked, member.inputs) < member.inputs)
      unchecked.emplace_back(group, member.reducer.get());
  }
  return unchecked;
}

bool Members::have_unchecked() const {
  return std::ranges::any_of(members_, [](const auto& each) { return each.second.checked < each.second.inputs; });
}

void Members::end_flush() {
  for (auto& [group, member] : members_) member.inputs = member.checked = 0;
}

std::vector<const Engine*> Members::leave_abandoned() {
  std::vector<const Engine*> left;
  std::erase_if(members_, [&](const auto& each) {
    if (!each.second.reducer->is_abandoned()) return false;
    left.push_back(each.first);
    return true;
  });
  return left;
}

void Members::trim() {
  for (auto& [group, member] : members_) member.reducer->trim();
}

}  // namespace levada
