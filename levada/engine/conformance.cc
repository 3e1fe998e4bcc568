#include "levada/engine/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "levada/engine/conformance_kit.h"

namespace levada::conformance {

std::span<const Case> cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> joined;
    for (const auto part : {message_cases(), memory_cases(), private_cases(), group_cases(), ending_cases(),
                            waiting_cases(), abort_cases()}) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }();
  return all;
}

Deadline limit() {
  return Deadline::after(std::chrono::seconds(20));
}

void fail(const Engine& engine, std::string_view sentence) {
  throw Failure(
      fmt::format("engine {}, rank {} of {}: {}", engine.info().name, rank_of(engine), size_of(engine), sentence));
}

void expect(const Engine& engine, bool holds, std::string_view sentence) {
  if (!holds) fail(engine, sentence);
}

std::vector<int> all_ranks(const Engine& engine) {
  std::vector<int> ranks(static_cast<std::size_t>(size_of(engine)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void meet(Engine& engine) {
  static_cast<void>(agree(engine, {}, limit(), "conformance"));
}

namespace {

/// Returns eight bytes of the content.
std::uint64_t word(std::uint64_t seed, std::size_t i) {
  return (seed + 1) * 0x9e3779b97f4a7c15U + i * 0x2545f4914f6cdd1dU;
}

std::size_t first_difference(ByteView bytes, std::uint64_t seed) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t expected = word(seed, at / 8);
    if (std::memcmp(bytes.data() + at, &expected, std::min<std::size_t>(8, bytes.size() - at)) != 0) return at;
  }
  return bytes.size();
}

}  // namespace

Block filled(Engine& engine, std::uint64_t seed, std::size_t bytes) {
  Block block = allocate(engine, bytes, limit(), "conformance");
  std::byte* to = block.memory().data();
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t value = word(seed, at / 8);
    std::memcpy(to + at, &value, std::min<std::size_t>(8, bytes - at));
  }
  return block;
}

void expect_filled(const Engine& engine, ByteView bytes, std::uint64_t seed, std::size_t size) {
  if (bytes.size() != size) fail(engine, fmt::format("a message has {} bytes instead of {}", bytes.size(), size));
  if (const auto at = first_difference(bytes, seed); at != size) {
    fail(engine, fmt::format("a message of {} bytes differs from what was sent at byte {}", size, at));
  }
}

void send(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes) {
  publish(engine, channel, filled(engine, seed, bytes), bytes, limit(), "conformance");
}

Lease receive(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes) {
  auto lease = receive(engine, channel, limit(), "conformance");
  if (!lease) fail(engine, "a channel ended before its messages had been received");
  expect_filled(engine, lease->bytes, seed, bytes);
  return *std::move(lease);
}

void expect_nothing(Engine& engine, Channel& channel) {
  const auto received = engine.try_receive(channel);
  expect(engine, !received.message, "a message arrived that no rank had sent");
  expect(engine, !received.ended, "a channel ended that no rank had closed");
}

namespace {

class ForeignHome final : public Block::Home {
 public:
  explicit ForeignHome(std::size_t bytes) : memory_(bytes) {}
  std::span<std::byte> memory() { return memory_; }
  void free_block(std::byte*, std::size_t) noexcept override {}

 private:
  Bytes memory_;
};

}  // namespace

std::uint64_t seed_by_sender(const Channel& channel, int i) {
  return static_cast<std::uint64_t>(channel.from()) * 1'000'000 + static_cast<std::uint64_t>(i);
}

Block foreign_block(std::size_t bytes) {
  auto home = std::make_shared<ForeignHome>(bytes);
  const auto memory = home->memory();
  return Block(memory, std::move(home));
}

namespace {

/// A flow and this rank's progress with it.
struct Progress {
  const Flow* flow;
  int to_send;
  int to_receive;
  int sent = 0;
  int received = 0;
  Block block = {};  ///< the next message, kept until there is room for it

  bool step(Engine& engine) {
    bool moved = false;
    if (sent < to_send) {
      const std::size_t bytes = flow->bytes(sent);
      if (!block) block = filled(engine, flow->seed(*flow->channel, sent), bytes);
      if (engine.try_publish(*flow->channel, block, bytes)) ++sent, moved = true;
    }
    if (received < to_receive) {
      if (const auto lease = engine.try_receive(*flow->channel).message) {
        expect_filled(engine, lease->bytes, flow->seed(*flow->channel, received), flow->bytes(received));
        ++received, moved = true;
      }
    }
    return moved;
  }
};

std::vector<Progress> begin(const Engine& engine, std::span<const Flow> flows) {
  std::vector<Progress> all;
  for (const Flow& flow : flows) {
    const auto& to = flow.channel->to();
    const bool receives = std::find(to.begin(), to.end(), rank_of(engine)) != to.end();
    const bool sends = flow.channel->from() == rank_of(engine);
    all.push_back({.flow = &flow, .to_send = sends ? flow.count : 0, .to_receive = receives ? flow.count : 0});
  }
  return all;
}

}  // namespace

void pump(Engine& engine, std::span<const Flow> flows) {
  auto all = begin(engine, flows);
  for (;;) {
    bool moved = false;
    for (Progress& progress : all) moved |= progress.step(engine);
    if (moved) continue;
    std::vector<Channel*> receive, publish;
    for (const Progress& progress : all) {
      if (progress.received < progress.to_receive) receive.push_back(progress.flow->channel);
      if (progress.sent < progress.to_send) publish.push_back(progress.flow->channel);
    }
    if (receive.empty() && publish.empty()) return;
    if (engine.wait({.receive = receive, .publish = publish}, limit()) != Woken::ready) {
      fail(engine, "the flows stalled before all messages had arrived");
    }
  }
}

}  // namespace levada::conformance
