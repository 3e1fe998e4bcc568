// Private views between real processes: their initial content, their cost, and when copies replace them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/forked_ranks_testing.h"

namespace levada::shm {
namespace {

constexpr std::size_t message_bytes = std::size_t{4} << 20;

/// Sends `messages` messages from rank 0 to all ranks. `use` gets each message's lease and number.
void broadcast(const std::shared_ptr<Engine>& engine, Channel& channel, int messages,
               const std::function<void(Lease&, std::byte)>& use) {
  for (int i = 0; i < messages; ++i) {
    const auto number = static_cast<std::byte>(i % 250);
    if (engine->info().rank == 0) {
      Block block = allocate(*engine, message_bytes, test::soon(), "test");
      std::fill(block.memory().begin(), block.memory().end(), number);
      publish(*engine, channel, std::move(block), message_bytes, test::soon(), "test");
    }
    auto lease = receive(*engine, channel, test::soon(), "test");
    use(*lease, number);
  }
  agree(*engine, {}, test::soon(), "test");
}

bool holds_only(ByteView bytes, std::byte number) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte each) { return each == number; });
}

/// Writes one byte in each of `pages` pages.
void write_pages(std::span<std::byte> bytes, std::size_t pages) {
  for (std::size_t i = 0; i < pages; ++i) bytes[i * page_bytes + 5] = std::byte{255};
}

TEST(PrivateViews, ShowTheSentBytesInEachLease) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1, 2}, 1);
    broadcast(engine, *channel, 40, [&](Lease& lease, std::byte number) {
      const auto bytes = engine->make_private(*channel, lease);
      test::expect(!bytes.empty(), "there are private views between processes");
      test::expect(holds_only(bytes, number), "a private view initially shows the sent bytes");
      write_pages(bytes, 1 + static_cast<std::size_t>(engine->info().rank));
    });
  };
  EXPECT_EQ(test::run_forked(3, body), "");
}

// The thread sanitizer allocates shadow memory for the written pages.
#if !defined(__SANITIZE_THREAD__)
/// Returns the private memory of this process, in KiB.
std::uint64_t anonymous_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib;
  }
  throw EngineError("/proc/self/status has no RssAnon");
}

TEST(PrivateViews, ReleaseTheirWrittenPages) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1}, 3);
    std::uint64_t before = 0;
    int taken = 0;
    broadcast(engine, *channel, 400, [&](Lease& lease, std::byte) {
      write_pages(engine->make_private(*channel, lease), 25);
      if (++taken == 20) before = anonymous_kib();
    });
    // Otherwise it would be 38,000 more.
    test::expect(anonymous_kib() < before + 8192, "written pages are released");
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}
#endif

TEST(PrivateViews, AreReplacedByCopiesIfManyPagesAreWritten) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto much = engine->open(0, {0, 1}, 1);
    const auto little = engine->open(0, {0, 1}, 1);
    int views = 0;
    broadcast(engine, *much, 10, [&](Lease& lease, std::byte number) {
      const auto bytes = engine->make_private(*much, lease);
      test::expect(holds_only(lease.bytes, number), "messages arrive unchanged, even after pages were written");
      views += bytes.empty() ? 0 : 1;
      if (!bytes.empty()) write_pages(bytes, message_bytes / page_bytes / 10);
    });
    test::expect(views > 0 && views < 10, "a channel switches to copies if a tenth of the pages is written");
    broadcast(engine, *little, 2, [&](Lease& lease, std::byte) {
      test::expect(!engine->make_private(*little, lease).empty(), "another channel keeps its private views");
    });
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(PrivateViews, AreUnavailableIfWrittenPagesCannotBeFound) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NOFILE, &none);  // /proc/self/pagemap can no longer be opened
    const auto channel = engine->open(0, {0, 1}, 1);
    broadcast(engine, *channel, 3, [&](Lease& lease, std::byte number) {
      test::expect(engine->make_private(*channel, lease).empty(), "there is no private view without the page map");
      test::expect(holds_only(lease.bytes, number), "the lease is unchanged");
    });
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(PrivateViews, AreNotMadeForSmallMessages) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1}, 1);
    if (engine->info().rank == 0) {
      publish(*engine, *channel, allocate(*engine, 1000, test::soon(), "test"), 1000, test::soon(), "test");
    }
    auto lease = receive(*engine, *channel, test::soon(), "test");
    test::expect(engine->make_private(*channel, *lease).empty(), "copying a small message is cheaper");
    agree(*engine, {}, test::soon(), "test");
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(PrivateViews, OfLockedMemoryAreDroppedToo) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1}, 1);
    broadcast(engine, *channel, 6, [&](Lease& lease, std::byte number) {
      const auto bytes = engine->make_private(*channel, lease);
      test::expect(bytes.empty() || holds_only(bytes, number),
                   "a view of locked memory initially shows the sent bytes");
      if (!bytes.empty()) static_cast<void>(::mlock(bytes.data(), 2 * page_bytes));
      if (!bytes.empty()) write_pages(bytes, 2);
    });
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

TEST(PrivateViews, EndSilentlyInAForkedChild) {
  const auto body = [](const std::shared_ptr<Engine>& engine) {
    const auto channel = engine->open(0, {0, 1}, 1);
    broadcast(engine, *channel, 3, [&](Lease& lease, std::byte) {
      const auto bytes = engine->make_private(*channel, lease);
      write_pages(bytes, 1);
      test::ForkedRanks children(1, [&](int) { lease = {}; });
      const auto endings = children.wait();
      test::expect(endings.front().well, "a child may drop a private lease: " + endings.front().error);
      test::expect(bytes[5] == std::byte{255}, "a child's end does not affect its parent's view");
    });
  };
  EXPECT_EQ(test::run_forked(2, body), "");
}

}  // namespace
}  // namespace levada::shm
