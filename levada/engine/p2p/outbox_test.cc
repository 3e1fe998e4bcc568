#include "levada/engine/p2p/outbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "levada/base/copy.h"

namespace levada::p2p {
namespace {

/// Records the frames that it is asked to send.
class RecordingTransport final : public Transport {
 public:
  struct Sent {
    std::vector<int> peers;
    Frame frame;
  };
  int rank() const override { return 0; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return "recording"; }
  std::size_t max_header_bytes() const override { return 4096; }
  void start(std::shared_ptr<Receiver> /*receiver*/) override {}
  void send(std::span<const int> peers, const Frame& frame) override {
    sent.push_back({{peers.begin(), peers.end()}, frame});
  }
  void schedule_flush(Clock::time_point /*at*/) override {}

  std::vector<Sent> sent;

 private:
  std::vector<int> host_of_{0, 1, 2, 3};
};

struct P2pOutbox : testing::Test {
  std::shared_ptr<RecordingTransport> transport = std::make_shared<RecordingTransport>();
  Outbox outbox{transport, 4};
  std::shared_ptr<const Bytes> payload = std::make_shared<const Bytes>(1000, std::byte{7});

  Entry message(std::uint64_t key) const {
    return {.key = key, .count = payload->size(), .payload = *payload, .hold = payload};
  }
  void flush() {
    outbox.flush([](int peer, std::string_view why) { ADD_FAILURE() << "rank " << peer << ": " << why; });
  }
  static std::vector<std::uint64_t> keys(const RecordingTransport::Sent& sent) {
    std::vector<std::uint64_t> found;
    for (const Entry& entry : decode(sent.frame.header.bytes, 4)) found.push_back(entry.key);
    return found;
  }
};

TEST_F(P2pOutbox, CopiesASmallMessageOnceForAllPeersWhenItIsSent) {
  const std::uint64_t before = copied_bytes();
  outbox.add(std::vector{1, 2, 3}, message(5), {});
  EXPECT_EQ(copied_bytes(), before) << "callers hold a lock";
  flush();
  EXPECT_EQ(copied_bytes(), before + payload->size());
  ASSERT_EQ(transport->sent.size(), 1U);
  EXPECT_EQ(transport->sent[0].peers, (std::vector{1, 2, 3}));
  EXPECT_EQ(payload.use_count(), 1) << "copied payload is released";
}

TEST_F(P2pOutbox, CopiesEachMessageOfASharedFrameOnce) {
  const std::uint64_t before = copied_bytes();
  for (std::uint64_t key = 1; key <= 3; ++key) outbox.add(std::vector{1}, message(key), {});
  flush();
  EXPECT_EQ(copied_bytes(), before + 3 * payload->size());
  ASSERT_EQ(transport->sent.size(), 1U);
  EXPECT_EQ(keys(transport->sent[0]), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST_F(P2pOutbox, KeepsEachPeersOrderIfAMulticastPrecedesOtherEntries) {
  outbox.add(2, {.kind = Entry::Kind::ask_status, .key = 1}, false);
  outbox.add(std::vector{1, 2, 3}, message(2), {});
  outbox.add(3, {.kind = Entry::Kind::ask_status, .key = 3}, true);
  flush();
  outbox.add(std::vector{1, 2, 3}, message(4), {});
  flush();
  std::vector<std::vector<std::uint64_t>> received(4);
  for (const auto& sent : transport->sent) {
    for (const int peer : sent.peers) {
      for (const std::uint64_t key : keys(sent)) received[static_cast<std::size_t>(peer)].push_back(key);
    }
  }
  EXPECT_EQ(received[1], (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(received[2], (std::vector<std::uint64_t>{1, 2, 4}));
  EXPECT_EQ(received[3], (std::vector<std::uint64_t>{2, 3, 4}));
}

}  // namespace
}  // namespace levada::p2p
