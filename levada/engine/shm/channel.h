// What open() gives.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/engine/shm/member.h"

namespace levada::shm {

class StreamChannel final : public Channel {
 public:
  StreamChannel(std::shared_ptr<Member> member, std::shared_ptr<Stream> stream, int from, std::vector<int> to,
                int window)
      : Channel(from, std::move(to), window), member_(std::move(member)), stream_(std::move(stream)) {}
  ~StreamChannel() override {
    member_->close_sender(*stream_);
    member_->close_taker(*stream_);
  }

  const std::shared_ptr<Stream>& stream() const { return stream_; }
  const Member* member() const { return member_.get(); }
  /// Of a channel that is known to be one of these.
  static Stream* stream_of(const Channel& channel) { return static_cast<const StreamChannel&>(channel).stream_.get(); }

 private:
  std::shared_ptr<Member> member_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace levada::shm
