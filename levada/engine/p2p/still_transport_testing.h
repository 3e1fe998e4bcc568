// A transport that sends nothing and delivers the entries that a test passes to it. Only for tests.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "levada/engine/p2p/frame.h"
#include "levada/engine/p2p/transport.h"

namespace levada::p2p::test {

/// A transport that sends nothing, for rank 0 of two ranks.
class StillTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return "still"; }
  std::size_t max_header_bytes() const override { return std::size_t{64} << 10; }
  void start(std::shared_ptr<Receiver> receiver) override { receiver_ = receiver.get(); }
  void send(std::span<const int> /*peers*/, const Frame& /*frame*/) override {}
  void schedule_flush(Clock::time_point /*at*/) override {}
  Receiver& receiver() { return *receiver_; }
  /// Delivers an entry as a frame from rank 1.
  void deliver(const Entry& entry) { receiver_->deliver(1, encode({&entry, 1}).bytes, {}, 0); }

 private:
  const std::vector<int> host_of_{0, 1};
  Receiver* receiver_ = nullptr;
};

}  // namespace levada::p2p::test
