// What the conformance cases are written with. Only for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/conformance.h"
#include "levada/engine/engine.h"

namespace levada::conformance {

using Handle = std::shared_ptr<Engine>;

std::span<const Case> message_cases();
std::span<const Case> memory_cases();
std::span<const Case> private_cases();
std::span<const Case> group_cases();
std::span<const Case> ending_cases();
std::span<const Case> waiting_cases();
std::span<const Case> abort_cases();

/// So far in the future that only a fault reaches it.
Deadline limit();

/// Throws Failure unless `holds`; `sentence` says what should hold.
void expect(const Engine& engine, bool holds, std::string_view sentence);
[[noreturn]] void fail(const Engine& engine, std::string_view sentence);

/// Calls `call`, which is to throw E; returns its message.
template <typename E, typename Call>
std::string expect_throws(const Engine& engine, std::string_view sentence, Call call) {
  try {
    static_cast<void>(call());
  } catch (const E& error) {
    return error.what();
  }
  fail(engine, sentence);
}

inline int rank_of(const Engine& engine) {
  return engine.info().rank;
}
inline int size_of(const Engine& engine) {
  return engine.info().size;
}
/// 0, 1, ..., size-1.
std::vector<int> all_ranks(const Engine& engine);
/// Every rank waits here for all others.
void meet(Engine& engine);

/// A block that starts with `bytes` bytes which `seed` determines.
Block filled(Engine& engine, std::uint64_t seed, std::size_t bytes);
void expect_filled(const Engine& engine, ByteView bytes, std::uint64_t seed, std::size_t size);

/// publish() of filled().
void send(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes);
/// levada::receive() of a channel that does not end, checked to be what send() sent.
Lease receive(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes);
/// try_receive() has neither a message nor the end.
void expect_nothing(Engine& engine, Channel& channel);

/// Waits until `holds()`: for what other ranks' doings bring about in time, such as a lease that has come back.
template <typename Condition>
void expect_eventually(const Engine& engine, std::string_view sentence, Condition holds) {
  for (const Deadline deadline = limit(); !holds();) {
    expect(engine, !deadline.expired(), sentence);
    std::this_thread::yield();
  }
}

/// A block in ordinary memory that no engine has given.
Block foreign_block(std::size_t bytes);

/// One rank's part in a stream: how many messages it sends or receives on a channel. Message i has the seed and the
/// size that these functions give.
struct Flow {
  Channel* channel = nullptr;
  int count = 0;
  std::uint64_t (*seed)(const Channel& channel, int i) = nullptr;
  std::size_t (*bytes)(int i) = nullptr;
};
/// A Flow's seed: other messages of each sender.
std::uint64_t seed_by_sender(const Channel& channel, int i);
/// Carries all flows to their end as operations do: sends and receives whatever can be, and waits for {space, messages}
/// alone. A channel whose sender this rank is gets sent on, one that it receives from gets received from, both where it
/// is both.
void pump(Engine& engine, std::span<const Flow> flows);

}  // namespace levada::conformance
