// What open() gives in engines in which a member of the group of all has the streams of all its groups.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"

namespace levada {

/// As long as one of a rank's engines lives, it has not left.
template <typename Member>
struct Presence {
  explicit Presence(std::shared_ptr<Member> its_member) : member(std::move(its_member)) {}
  ~Presence() { member->leave_all(); }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  std::shared_ptr<Member> member;
};

/// A Member has close_sender() and close_receiver(), which do nothing at an end that is not its own.
template <typename Member, typename Stream>
class StreamChannel final : public Channel {
 public:
  /// `group`: the key of the group whose ranks `from` and `to` are.
  StreamChannel(std::shared_ptr<Member> member, std::uint64_t group, std::shared_ptr<Stream> stream, int from,
                std::vector<int> to, int window)
      : Channel(from, std::move(to), window), member_(std::move(member)), group_(group), stream_(std::move(stream)) {}
  ~StreamChannel() override {
    member_->close_sender(*stream_);
    member_->close_receiver(*stream_);
  }

  /// Null for a channel of another engine, or of another group.
  static const StreamChannel* find(const Channel& channel, const Member& member, std::uint64_t group) {
    const auto* found = dynamic_cast<const StreamChannel*>(&channel);
    return found != nullptr && found->member_.get() == &member && found->group_ == group ? found : nullptr;
  }
  /// Of a channel that is known to be one of these.
  static const std::shared_ptr<Stream>& stream_of(const Channel& channel) {
    return static_cast<const StreamChannel&>(channel).stream_;
  }
  const std::shared_ptr<Stream>& stream() const { return stream_; }

 private:
  std::shared_ptr<Member> member_;
  std::uint64_t group_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace levada
