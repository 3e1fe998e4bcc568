// A forked child cannot use the engine that it inherits.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

int status_of_child(const std::function<int()>& body) {
  const int process = ::fork();
  if (process == 0) ::_exit(body());
  int status = -1;
  ::waitpid(process, &status, 0);
  return status;
}

bool refuses(const std::function<void()>& call) {
  try {
    call();
  } catch (const EngineError&) {
    return true;
  }
  return false;
}

TEST(Fork, DoesNotAffectTheParentsEngineLeasesAndBlocks) {
  const auto body = [](std::shared_ptr<Engine> engine) {
    auto channel = engine->open(0, {0}, 2);
    publish(*engine, *channel, allocate(*engine, 100, test::soon(), "test"), 100, test::soon(), "test");
    std::optional<Lease> lease = receive(*engine, *channel, test::soon(), "test");
    std::optional<Block> block = engine->try_allocate(100);
    std::byte* const memory = block->memory().data();
    const int status = status_of_child([&] {
      const bool all_refused = refuses([&] { engine->post({}); }) && refuses([&] { engine->try_allocate(1); }) &&
                               refuses([&] { engine->try_receive(*channel); }) &&
                               refuses([&] { engine->try_publish(*channel, *block, 1); }) &&
                               refuses([&] { engine->open(0, {0}, 1); }) &&
                               refuses([&] { engine->subgroup(std::vector<int>{0}, "x"); }) &&
                               refuses([&] { engine->wait({}, test::soon()); }) && refuses([&] { engine->wake(); });
      engine->abort("a child must not");
      lease.reset();
      block.reset();
      channel.reset();
      engine.reset();
      return all_refused ? 0 : 1;
    });
    if (status != 0) throw EngineError("the child's calls were not all refused");
    const auto holders = engine->holders(*channel);
    if (holders.size() != 1 || holders[0].leased != 1) throw EngineError("the child released the parent's lease");
    if (engine->try_allocate(100)->memory().data() == memory) throw EngineError("the child released a block");
    publish(*engine, *channel, *std::move(block), 1, test::soon(), "test");
    if (receive(*engine, *channel, test::soon(), "test")->bytes.data() != memory)
      throw EngineError("the block has moved");
  };
  EXPECT_EQ(test::run_forked(1, body, {.memory_bytes = 1 << 20}), "");
}

TEST(Fork, KillsAChildThatReadsABatchOfItsParent) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    if (engine->info().rank == 1) return agree(*engine, {}, test::soon(), "test"), void();
    auto channel = engine->open(0, {0}, 2);
    publish(*engine, *channel, allocate(*engine, 100, test::soon(), "test"), 100, test::soon(), "test");
    std::optional<Lease> lease = receive(*engine, *channel, test::soon(), "test");
    const auto* const at = reinterpret_cast<const volatile unsigned char*>(lease->bytes.data());
    const auto read = [&] {
      for (const int signal : {SIGSEGV, SIGBUS}) ::signal(signal, SIG_DFL);  // a sanitizer would exit normally
      return static_cast<int>(*at);
    };
    if (!WIFSIGNALED(status_of_child(read))) {
      throw EngineError("the child read its parent's batch");
    }
    agree(*engine, {}, test::soon(), "test");
  };
  EXPECT_EQ(test::run_forked(2, body, {.memory_bytes = 1 << 20}), "");
}

TEST(Fork, KillsAChildThatReadsAPrivateViewOfItsParent) {
  constexpr std::size_t bytes = 1 << 20;
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    auto channel = engine->open(0, {1}, 2);
    if (engine->info().rank == 0) {
      publish(*engine, *channel, allocate(*engine, bytes, test::soon(), "test"), bytes, test::soon(), "test");
      return agree(*engine, {}, test::soon(), "test"), void();
    }
    std::optional<Lease> lease = receive(*engine, *channel, test::soon(), "test");
    const auto view = engine->make_private(*channel, *lease);
    test::expect(!view.empty(), "there are private views between processes");
    view[0] = std::byte{7};
    const auto read = [at = reinterpret_cast<const volatile unsigned char*>(view.data())] {
      for (const int signal : {SIGSEGV, SIGBUS}) ::signal(signal, SIG_DFL);  // a sanitizer would exit normally
      return static_cast<int>(*at);
    };
    test::expect(WIFSIGNALED(status_of_child(read)), "a child that reads its parent's view dies");
    test::expect(view[0] == std::byte{7}, "the parent keeps its view");
    agree(*engine, {}, test::soon(), "test");
  };
  EXPECT_EQ(test::run_forked(2, body, {.memory_bytes = 8 << 20}), "");
}

TEST(Fork, DoesNotReportAnEndedChildAsADeath) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    static_cast<void>(status_of_child([] { return 0; }));
    agree(*engine, {}, test::soon(), "test");
    if (engine->wait({}, Deadline::after(std::chrono::milliseconds(20))) != Woken::timeout) {
      throw EngineError("something happened");
    }
    agree(*engine, {}, test::soon(), "test");
  };
  EXPECT_EQ(test::run_forked(2, body, {.memory_bytes = 1 << 20}), "");
}

}  // namespace
}  // namespace levada::shm
