#include "levada/engine/shm/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "levada/base/error.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/memory_limits.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {
namespace {

constexpr std::uint64_t max_address = std::uint64_t{1} << 44;  // 16 TiB of the 128 that a process has
/// What rank 0 knows of the others is worth waiting a little longer for than one's own deadline.
constexpr Duration grace = std::chrono::seconds(1);

std::uint64_t soft_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur;
}

/// Of a limited address space, half of what this process does not use yet.
std::uint64_t address_budget() {
  const std::uint64_t limit = soft_limit(RLIMIT_AS);
  if (limit == std::numeric_limits<std::uint64_t>::max()) return max_address;
  const std::string pages = read_system_file("/proc/self/statm").value_or("0");
  const std::uint64_t used = std::strtoull(pages.c_str(), nullptr, 10) * page_bytes;
  return std::min(max_address, (limit - std::min(limit, used)) / 2);
}

Hello introduce(int rank, int size, const Options& options) {
  Hello hello;
  hello.rank = rank;
  hello.size = size;
  hello.process = ::getpid();
  // Past its limit a file does not only not grow: SIGXFSZ ends the process.
  hello.memory = std::min<std::uint64_t>(options.memory_bytes != 0 ? options.memory_bytes : memory_limits().total,
                                         soft_limit(RLIMIT_FSIZE));
  hello.address = address_budget();
  return hello;
}

std::vector<std::uint64_t> share_address_space(const std::vector<Hello>& hellos) {
  std::uint64_t address = max_address;
  for (const Hello& hello : hellos) address = std::min(address, hello.address);
  const std::uint64_t each = address / hellos.size();
  std::vector<std::uint64_t> memory;
  for (const Hello& hello : hellos) {
    memory.push_back(std::max(std::min(hello.memory, each) / page_bytes * page_bytes, page_bytes));
  }
  return memory;
}

/// This rank's data: a writable mapping, and the descriptor that the others get.
struct OwnData {
  std::shared_ptr<const Mapping> mapping;
  UniqueFd shown;
};
OwnData make_own_data(std::uint64_t bytes) {
  const UniqueFd file = make_memory_file("levada-data", bytes);
  auto mapping = std::make_shared<const Mapping>(file, bytes, Mapping::Access::write);
  return {std::move(mapping), read_only(file)};
}

std::shared_ptr<const Mapping> map_data(const UniqueFd& file, std::uint64_t bytes, int rank) {
  expect_memory_file(file, bytes, fmt::format("rank {}'s memory", rank));
  return std::make_shared<const Mapping>(file, bytes, Mapping::Access::read);
}

/// Rank 0's side of the links.
class Gathering {
 public:
  Gathering(std::vector<UniqueFd> links, Deadline deadline)
      : links_(std::move(links)), processes_(links_.size(), 0), deadline_(deadline) {}

  /// One frame that says `expected` from everybody, in whatever order they come.
  void collect(FrameKind expected, const char* step, const std::function<void(int, ByteReader&, Frame&)>& use);
  void send(int rank, ByteView bytes, std::span<const int> fds = {});
  void send_all(ByteView bytes, std::span<const int> fds = {});
  /// Who has ended by now is no longer the start's affair: all are watched.
  void let_go();
  /// Nobody is to wait for a start that has failed.
  void tell(const StartFailure& cause) noexcept;
  void know(int rank, int process) { processes_[static_cast<std::size_t>(rank)] = process; }
  int size() const { return static_cast<int>(links_.size()); }

 private:
  [[noreturn]] void lost(int rank, const char* step) const;

  std::vector<UniqueFd> links_;
  std::vector<int> processes_;
  Deadline deadline_;
};

void Gathering::lost(int rank, const char* step) const {
  const int process = processes_[static_cast<std::size_t>(rank)];
  throw PeerLost(rank, fmt::format("rank {}{} ended while the ranks were {}; its own output may say why", rank,
                                   process != 0 ? fmt::format(" (process {})", process) : "", step));
}

void Gathering::collect(FrameKind expected, const char* step,
                        const std::function<void(int, ByteReader&, Frame&)>& use) {
  std::vector<int> missing;
  for (int rank = 1; rank < size(); ++rank) missing.push_back(rank);
  while (!missing.empty()) {
    const auto readable = wait_readable(links_, deadline_);
    if (readable.empty()) {
      throw Timeout(fmt::format(
          "rank 0 waited for rank{} {} while the ranks were {}; see why {} not come, or raise the "
          "timeout",
          missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), step, missing.size() > 1 ? "they do" : "it does"));
    }
    for (const std::size_t index : readable) {
      const int rank = static_cast<int>(index);
      auto frame = receive_frame(links_[index]);
      if (!frame) lost(rank, step);
      OpenedFrame opened = open_frame(frame->bytes);
      if (opened.kind != expected || std::erase(missing, rank) == 0) {
        throw EngineError(fmt::format("rank {} says what it should not while the ranks were {}", rank, step));
      }
      use(rank, opened.rest, *frame);
    }
  }
}

void Gathering::send(int rank, ByteView bytes, std::span<const int> fds) {
  if (!send_frame(links_[static_cast<std::size_t>(rank)], bytes, fds, deadline_)) lost(rank, "being told");
}

void Gathering::send_all(ByteView bytes, std::span<const int> fds) {
  for (int rank = 1; rank < size(); ++rank) send(rank, bytes, fds);
}

void Gathering::let_go() {
  const Bytes go = encode(FrameKind::go);
  for (int rank = 1; rank < size(); ++rank) send_frame(links_[static_cast<std::size_t>(rank)], go, {}, deadline_);
}

void Gathering::tell(const StartFailure& cause) noexcept {
  for (const UniqueFd& link : links_) {
    try {
      if (link) send_frame(link, encode(cause), {}, Deadline::now());
    } catch (const Error&) {  // it will see the link's end
    }
  }
}

std::vector<Hello> collect_hellos(Gathering& ranks, const Hello& mine) {
  std::vector<Hello> hellos(static_cast<std::size_t>(ranks.size()));
  ranks.collect(FrameKind::hello, "arriving", [&](int rank, ByteReader& reader, Frame&) {
    const Hello hello = decode_hello(reader);
    if (hello.rank != rank || hello.size != mine.size) {
      throw EngineError(
          fmt::format("the link to rank {} of {} leads to rank {} of {}; start all ranks with the same "
                      "size, each with a rank of its own",
                      rank, mine.size, hello.rank, hello.size));
    }
    ranks.know(rank, hello.process);
    hellos[static_cast<std::size_t>(rank)] = hello;
  });
  return hellos;
}

std::vector<UniqueFd> collect_data(Gathering& ranks, UniqueFd mine) {
  std::vector<UniqueFd> files(static_cast<std::size_t>(ranks.size()));
  ranks.collect(FrameKind::data, "making their memory", [&](int rank, ByteReader&, Frame& frame) {
    if (frame.fds.size() != 1) throw EngineError(fmt::format("rank {} did not show its memory", rank));
    files[static_cast<std::size_t>(rank)] = std::move(frame.fds.front());
  });
  files[0] = std::move(mine);
  return files;
}

void show_data(Gathering& ranks, const std::vector<UniqueFd>& files) {
  std::vector<int> fds;
  for (const UniqueFd& file : files) fds.push_back(file.get());
  for (std::size_t first = 0; first < fds.size(); first += max_fds) {
    const std::size_t count = std::min(max_fds, fds.size() - first);
    ranks.send_all(encode_peers(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)),
                   std::span(fds).subspan(first, count));
  }
}

std::shared_ptr<ShmEndpoint> lead(Gathering& ranks, std::vector<Hello> hellos, const Options& options) {
  const int size = ranks.size();
  const Hello mine = introduce(0, size, options);
  if (hellos.empty()) hellos = collect_hellos(ranks, mine);
  hellos[0] = mine;
  const std::vector<std::uint64_t> memory = share_address_space(hellos);
  const UniqueFd control = make_memory_file("levada-control", Control::bytes(size));
  const int control_fd = control.get();
  ranks.send_all(encode_plan(memory), std::span(&control_fd, 1));
  OwnData own = make_own_data(memory[0]);
  std::vector<UniqueFd> files = collect_data(ranks, std::move(own.shown));
  show_data(ranks, files);

  HostMemory host{0, size, std::make_shared<const Mapping>(control, Control::bytes(size), Mapping::Access::write), {}};
  host.data.push_back(std::move(own.mapping));
  for (int rank = 1; rank < size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    host.data.push_back(map_data(files[index], memory[index], rank));
  }
  host.files = std::make_shared<const std::vector<UniqueFd>>(std::move(files));
  auto member = std::make_shared<ShmEndpoint>(std::move(host));
  ranks.collect(FrameKind::ready, "mapping each other's memory", [](int, ByteReader&, Frame&) {});
  ranks.let_go();
  return member;
}

/// The others' side of their link.
class Follower {
 public:
  Follower(int rank, UniqueFd link, Deadline deadline) : rank_(rank), deadline_(deadline) {
    link_.push_back(std::move(link));
  }

  /// The next frame, which has to say `expected`; `use` reads what follows.
  void hear(FrameKind expected, const std::function<void(ByteReader&, Frame&)>& use);
  void send(ByteView bytes, std::span<const int> fds = {});
  void tell(const StartFailure& cause) noexcept;

 private:
  [[noreturn]] static void lost();

  int rank_;
  std::vector<UniqueFd> link_;
  Deadline deadline_;
};

void Follower::lost() {
  throw PeerLost(0, "rank 0 ended while the ranks were starting; its own output may say why");
}

void Follower::hear(FrameKind expected, const std::function<void(ByteReader&, Frame&)>& use) {
  const Deadline longer = deadline_.is_never() ? deadline_ : Deadline::after(deadline_.remaining() + grace);
  if (wait_readable(link_, longer).empty()) {
    throw Timeout(
        fmt::format("rank {} waited for rank 0 to start with all ranks; see whether all have been started, or "
                    "raise the timeout",
                    rank_));
  }
  auto frame = receive_frame(link_.front());
  if (!frame) lost();
  OpenedFrame opened = open_frame(frame->bytes);
  if (opened.kind != expected) throw EngineError("rank 0 says what it should not in a start");
  use(opened.rest, *frame);
}

void Follower::send(ByteView bytes, std::span<const int> fds) {
  if (send_frame(link_.front(), bytes, fds, deadline_)) return;
  hear(FrameKind::failed, [](ByteReader&, Frame&) {});  // what it said before it closed; otherwise it is lost
}

void Follower::tell(const StartFailure& cause) noexcept {
  try {
    send_frame(link_.front(), encode(cause), {}, Deadline::now());
  } catch (const Error&) {  // rank 0 will see the link's end
  }
}

std::vector<UniqueFd> hear_data(Follower& link, std::size_t size) {
  std::vector<UniqueFd> files;
  while (files.size() < size) {
    link.hear(FrameKind::peers, [&](ByteReader& reader, Frame& frame) {
      const auto first = reader.get<std::uint32_t>();
      const auto count = reader.get<std::uint32_t>();
      if (first != files.size() || count != frame.fds.size() || count == 0 || count > size - files.size()) {
        throw EngineError("rank 0 showed other ranks' memory out of order; raise the number of open files (ulimit -n)");
      }
      std::move(frame.fds.begin(), frame.fds.end(), std::back_inserter(files));
    });
  }
  return files;
}

std::shared_ptr<ShmEndpoint> follow(Follower& link, int rank, int size, const Options& options) {
  link.send(encode(introduce(rank, size, options)));
  std::vector<std::uint64_t> memory;
  UniqueFd control;
  link.hear(FrameKind::plan, [&](ByteReader& reader, Frame& frame) {
    memory = decode_plan(reader);
    if (memory.size() != static_cast<std::size_t>(size) || frame.fds.size() != 1) {
      throw EngineError("rank 0 plans for another number of ranks; start all ranks with the same size");
    }
    control = std::move(frame.fds.front());
  });
  const auto own = static_cast<std::size_t>(rank);
  const OwnData mine = make_own_data(memory[own]);
  const int shown = mine.shown.get();
  link.send(encode(FrameKind::data), std::span(&shown, 1));
  std::vector<UniqueFd> files = hear_data(link, memory.size());

  expect_memory_file(control, Control::bytes(size), "the control memory");
  HostMemory host{
      rank, size, std::make_shared<const Mapping>(control, Control::bytes(size), Mapping::Access::write), {}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    host.data.push_back(i == own ? mine.mapping : map_data(files[i], memory[i], static_cast<int>(i)));
  }
  host.files = std::make_shared<const std::vector<UniqueFd>>(std::move(files));
  auto member = std::make_shared<ShmEndpoint>(std::move(host));
  link.send(encode(FrameKind::ready));
  link.hear(FrameKind::go, [](ByteReader&, Frame&) {});
  return member;
}

/// Runs one side of the start; what it throws is told to the other ranks before.
template <typename Side, typename Call>
std::shared_ptr<ShmEndpoint> told(Side& side, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    side.tell(StartFailure::of(error));
    throw;
  }
}

}  // namespace

std::shared_ptr<ShmEndpoint> start(int rank, int size, Connected connected, const Options& options, Deadline deadline) {
  std::shared_ptr<ShmEndpoint> member;
  if (rank == 0) {
    Gathering ranks(std::move(connected.links), deadline);
    for (std::size_t i = 0; i < connected.hellos.size(); ++i) {
      ranks.know(static_cast<int>(i), connected.hellos[i].process);
    }
    member = told(ranks, [&] { return lead(ranks, std::move(connected.hellos), options); });
  } else {
    Follower link(rank, std::move(connected.links.front()), deadline);
    member = told(link, [&] { return follow(link, rank, size, options); });
  }
  member->watch();
  return member;
}

}  // namespace levada::shm
