// What the members of a group share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/event_count.h"
#include "levada/engine/group.h"
#include "levada/engine/inproc/stream.h"

namespace levada::inproc {

/// A group and all that goes on in it, under one mutex. Calls name the rank that makes them. Whoever changes what a
/// rank may wait for notifies that rank. Any thread.
class Group : public std::enable_shared_from_this<Group> {
 public:
  /// `events`: each rank's own, the same in every group that it is in. `ranks`: what the members are called in
  /// `parent`.
  explicit Group(std::vector<std::shared_ptr<EventCount>> events, std::shared_ptr<Group> parent = nullptr,
                 std::vector<int> ranks = {});

  int size() const { return static_cast<int>(members_.size()); }
  std::shared_ptr<Group> subgroup(int rank, std::span<const int> ranks, std::string_view name);
  std::shared_ptr<Stream> open(int rank, int from, std::span<const int> to, int window);

  bool try_publish(int rank, Stream& stream, Block& block, std::size_t bytes);
  struct Taken {
    std::optional<Message> message;
    std::shared_ptr<std::atomic<int>> leased;  ///< where there is a message
    bool ended = false;
  };
  Taken try_receive(int rank, Stream& stream);
  std::vector<Engine::Holder> holders(const Stream& stream);
  void close_sender(Stream& stream);
  void close_taker(Stream& stream, int rank);

  /// Throws as every call does once the group has been aborted or has lost a member.
  void check();
  /// Whether one of the channels has what it is to have; throws as check() does, but for messages that can be taken.
  struct Wanted {
    std::span<const Stream*const> take, publish;
  };
  bool ready(int rank, const Wanted& wanted);

  void post(int rank, const Status& status);
  Status status(int rank);

  void abort(int rank, std::string_view reason);
  /// Leaves this group and those subgroups that the rank has not entered yet.
  void leave(int rank);
  /// The rank dies: in this group, those that it was made from, and all made from those.
  void lose(int rank);

 private:
  using StreamKey = std::tuple<int, std::vector<int>, int>;
  using SubgroupKey = std::tuple<std::vector<int>, std::string, int>;
  enum class Presence : std::uint8_t { here, left, lost };
  struct Member {
    std::shared_ptr<EventCount> changed;
    Presence presence = Presence::here;
    Status status;
    std::map<std::tuple<int, std::vector<int>>, int> opened;
    std::map<std::tuple<std::vector<int>, std::string>, int> entered;
  };
  /// A subgroup that some of its members have still to enter.
  struct Expected {
    std::shared_ptr<Group> group;
    std::vector<int> missing;
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void check_locked() const;
  void check_aborted() const;
  void close_sender_locked(Stream& stream);
  void close_taker_locked(Stream& stream, int rank);
  void forget_finished();
  std::shared_ptr<Group> make_subgroup(const std::vector<int>& ranks);
  std::vector<std::shared_ptr<Group>> children();
  void abort_with(const std::string& message);
  void lose_below(int rank);
  void notify_all();
  int rank_of(int parent_rank) const;

  const std::shared_ptr<Group> parent_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::vector<Member> members_;
  std::map<StreamKey, std::shared_ptr<Stream>> streams_;
  std::map<SubgroupKey, Expected> expected_;
  std::vector<std::weak_ptr<Group>> children_;
  bool aborted_ = false;
  std::optional<Cause> cause_;  ///< the first abort or death
};

}  // namespace levada::inproc
