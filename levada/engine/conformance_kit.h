// Helpers for the conformance cases only.
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

/// Returns a deadline that is reached only if there is a fault.
Deadline limit();

/// Throws Failure unless `holds`; `sentence` states the expectation.
void expect(const Engine& engine, bool holds, std::string_view sentence);
[[noreturn]] void fail(const Engine& engine, std::string_view sentence);

/// Calls `call`, which must throw E; returns the exception's message.
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
/// Returns 0, 1, ..., size-1.
std::vector<int> all_ranks(const Engine& engine);
/// Blocks until every rank has called it.
void meet(Engine& engine);

/// Returns a block that starts with `bytes` bytes determined by `seed`.
Block filled(Engine& engine, std::uint64_t seed, std::size_t bytes);
void expect_filled(const Engine& engine, ByteView bytes, std::uint64_t seed, std::size_t size);

/// Publishes filled().
void send(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes);
/// Calls levada::receive() on a channel that does not end, and checks that it returns what send() sent.
Lease receive(Engine& engine, Channel& channel, std::uint64_t seed, std::size_t bytes);
/// Checks that try_receive() returns neither a message nor the end.
void expect_nothing(Engine& engine, Channel& channel);

/// Waits until `holds()`, for conditions that other ranks establish eventually, such as the return of a lease.
template <typename Condition>
void expect_eventually(const Engine& engine, std::string_view sentence, Condition holds) {
  for (const Deadline deadline = limit(); !holds();) {
    expect(engine, !deadline.expired(), sentence);
    std::this_thread::yield();
  }
}

/// Returns a block in ordinary memory that no engine allocated.
Block foreign_block(std::size_t bytes);

/// One rank's part in a stream: the number of messages that it sends or receives on a channel, and the functions that
/// return the seed and the size of message i.
struct Flow {
  Channel* channel = nullptr;
  int count = 0;
  std::uint64_t (*seed)(const Channel& channel, int i) = nullptr;
  std::size_t (*bytes)(int i) = nullptr;
};
/// A Flow's seed: different for each sender.
std::uint64_t seed_by_sender(const Channel& channel, int i);
/// Runs all flows to completion as operations do: sends and receives whatever is possible, and waits only for space and
/// messages. Sends on the channels on which this rank is the sender, and receives on those on which it is a receiver.
void pump(Engine& engine, std::span<const Flow> flows);

}  // namespace levada::conformance
