#include "levada/engine/shm/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>

#include "levada/base/error.h"
#include "levada/base/memory_limits.h"
#include "levada/base/open_files.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {
namespace {

constexpr std::uint64_t max_address = std::uint64_t{1} << 44;  // 16 TiB of the 128 TiB of a process
/// How long a rank waits for rank 0 after its deadline, because rank 0's error names the missing rank.
constexpr Duration grace = std::chrono::seconds(1);

std::uint64_t soft_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur;
}

/// Returns half of this process's unused address space if it is limited; otherwise max_address.
std::uint64_t address_budget() {
  const std::uint64_t limit = soft_limit(RLIMIT_AS);
  if (limit == std::numeric_limits<std::uint64_t>::max()) return max_address;
  const std::string pages = read_system_file("/proc/self/statm").value_or("0");
  const std::uint64_t used = std::strtoull(pages.c_str(), nullptr, 10) * page_bytes;
  return std::min(max_address, (limit - std::min(limit, used)) / 2);
}

Hello make_hello(int rank, int size, const Options& options) {
  Hello hello;
  hello.rank = rank;
  hello.size = size;
  hello.process = ::getpid();
  hello.memory = options.memory_bytes != 0 ? options.memory_bytes : memory_limits().total;
  hello.address = address_budget();
  return hello;
}

/// Returns the size of each rank's data file. Called on rank 0, whose file size limit applies to all files, because
/// creating a larger file would end the process (SIGXFSZ).
std::vector<std::uint64_t> plan_memory(const std::vector<Hello>& hellos) {
  std::uint64_t address = max_address;
  for (const Hello& hello : hellos) address = std::min(address, hello.address);
  const std::uint64_t each = std::min(address / hellos.size(), soft_limit(RLIMIT_FSIZE));
  std::vector<std::uint64_t> memory;
  for (const Hello& hello : hellos) {
    memory.push_back(std::max(std::min(hello.memory, each) / page_bytes * page_bytes, page_bytes));
  }
  return memory;
}

/// The descriptors that rank 0 sends to each rank, in this order.
struct Files {
  UniqueFd control;
  UniqueFd own;                ///< the rank's data, writable
  std::vector<UniqueFd> data;  ///< each rank's data, read-only

  static std::size_t count(std::size_t ranks) { return 2 + ranks; }
};

/// Maps all files. The rank counts as alive once this returns.
std::shared_ptr<ShmEndpoint> make_member(int rank, const std::vector<std::uint64_t>& memory, Files files) {
  const auto own = static_cast<std::size_t>(rank);
  const int size = static_cast<int>(memory.size());
  expect_memory_file(files.control, Control::bytes(size), "the control memory");
  HostMemory host{rank, size, nullptr, {}};
  host.control = std::make_shared<const Mapping>(files.control, Control::bytes(size), Mapping::Access::write);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const UniqueFd& file = i == own ? files.own : files.data[i];
    expect_memory_file(file, memory[i], fmt::format("rank {}'s memory", i));
    const auto access = i == own ? Mapping::Access::write : Mapping::Access::read;
    const auto data = std::make_shared<Mapping>(file, memory[i], access);
    data->hide_from_children();
    host.data.push_back(data);
  }
  seal_unless_read_only(files.data[own]);
  host.files = std::make_shared<const std::vector<UniqueFd>>(std::move(files.data));
  return std::make_shared<ShmEndpoint>(std::move(host));
}

using Kind = StartLink::Received::Kind;
constexpr const char* not_from_a_rank =
    "the link to rank {} carried data that no rank sends while the ranks were {}; check which other process uses it";

/// Rank 0's side of the links.
class StartLeader {
 public:
  StartLeader(std::vector<StartLink> links, Deadline deadline, std::stop_token stop)
      : links_(std::move(links)), processes_(links_.size(), 0), deadline_(deadline), stop_(std::move(stop)) {}

  /// Receives one frame of kind `expected` from every other rank, in order of arrival.
  void collect(FrameKind expected, const char* step, const std::function<void(int, ByteReader&)>& use);
  void send(int rank, ByteView bytes, std::span<const int> fds);
  /// Sends `go`. From here on, the end of a rank is not an error of the start, because all ranks are watched.
  void release();
  /// Sends `cause` to all ranks, so that none waits for a start that has failed.
  void send_failure(const StartFailure& cause) noexcept;
  void set_process(int rank, int process) { processes_[static_cast<std::size_t>(rank)] = process; }
  int size() const { return static_cast<int>(links_.size()); }

 private:
  [[noreturn]] void throw_lost(int rank, const char* step) const;

  std::vector<StartLink> links_;
  std::vector<int> processes_;
  Deadline deadline_;
  std::stop_token stop_;
};

void StartLeader::throw_lost(int rank, const char* step) const {
  const int process = processes_[static_cast<std::size_t>(rank)];
  throw PeerLost(rank, fmt::format("rank {}{} ended while the ranks were {}; its own output may say why", rank,
                                   process != 0 ? fmt::format(" (process {})", process) : "", step));
}

void StartLeader::collect(FrameKind expected, const char* step, const std::function<void(int, ByteReader&)>& use) {
  std::vector<int> missing;
  for (int rank = 1; rank < size(); ++rank) missing.push_back(rank);
  while (!missing.empty()) {
    const auto readable = wait_readable(descriptors_of(links_), deadline_, stop_);
    if (readable.empty()) {
      throw Timeout(fmt::format(
          "rank 0 waited for rank{} {} while the ranks were {}; check the output of {}, or raise the timeout",
          missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), step,
          missing.size() > 1 ? "those ranks" : "that rank"));
    }
    for (const std::size_t index : readable) {
      const int rank = static_cast<int>(index);
      const auto received = links_[index].receive();
      if (received.kind == Kind::greeting) continue;
      if (received.kind == Kind::closed) throw_lost(rank, step);
      if (received.kind == Kind::stranger) throw EngineError(fmt::format(not_from_a_rank, rank, step));
      OpenedFrame opened = open_frame(received.frame.bytes);
      if (opened.kind != expected || std::erase(missing, rank) == 0) {
        throw EngineError(fmt::format("rank {} sent an unexpected frame while the ranks were {}", rank, step));
      }
      use(rank, opened.rest);
    }
  }
}

void StartLeader::send(int rank, ByteView bytes, std::span<const int> fds) {
  StartLink& link = links_[static_cast<std::size_t>(rank)];
  if (link.send(bytes, fds, deadline_, stop_)) return;
  link.raise_failure();
  throw_lost(rank, "being sent its part");
}

void StartLeader::release() {
  const Bytes go = encode(FrameKind::go);
  for (int rank = 1; rank < size(); ++rank) {
    links_[static_cast<std::size_t>(rank)].send(go, {}, deadline_, stop_);
  }
}

void StartLeader::send_failure(const StartFailure& cause) noexcept {
  for (StartLink& link : links_) {
    try {
      if (link) link.send(encode(cause), {}, Deadline::now());
    } catch (const Error&) {  // the rank will see its link close
    }
  }
}

std::vector<Hello> collect_hellos(StartLeader& ranks, const Hello& own) {
  std::vector<Hello> hellos(static_cast<std::size_t>(ranks.size()));
  ranks.collect(FrameKind::hello, "arriving", [&](int rank, ByteReader& reader) {
    const Hello hello = decode_hello(reader);
    if (hello.rank != rank || hello.size != own.size) {
      throw EngineError(
          fmt::format("the link to rank {} of {} leads to rank {} of {}; start all ranks with the same "
                      "size and different rank numbers",
                      rank, own.size, hello.rank, hello.size));
    }
    ranks.set_process(rank, hello.process);
    hellos[static_cast<std::size_t>(rank)] = hello;
  });
  return hellos;
}

/// Creates all files and sends them to the other ranks. Returns rank 0's files.
Files share_files(StartLeader& ranks, const std::vector<std::uint64_t>& memory) {
  const int size = ranks.size();
  const Bytes plan = encode_plan(memory);
  Files files;
  files.control = make_memory_file("levada-control", Control::bytes(size));
  std::vector<int> data;
  for (int rank = 0; rank < size; ++rank) {
    UniqueFd file = make_memory_file("levada-data", memory[static_cast<std::size_t>(rank)]);
    files.data.push_back(reopen_read_only(file));
    data.push_back(files.data.back().get());
    // Rank 0 keeps a writable descriptor open only until the rank that it belongs to has received it.
    if (rank == 0) files.own = std::move(file);
    else ranks.send(rank, plan, std::array{files.control.get(), file.get()});
  }
  for (std::span<const int> rest = data; !rest.empty(); rest = rest.subspan(std::min(rest.size(), max_fds))) {
    for (int rank = 1; rank < size; ++rank) ranks.send(rank, plan, rest.first(std::min(rest.size(), max_fds)));
  }
  return files;
}

std::shared_ptr<ShmEndpoint> lead(StartLeader& ranks, std::vector<Hello> hellos, const Options& options) {
  reserve_open_files(num_files_to_start(ranks.size()), "rank 0");
  const Hello own = make_hello(0, ranks.size(), options);
  if (hellos.empty()) hellos = collect_hellos(ranks, own);
  hellos[0] = own;
  const std::vector<std::uint64_t> memory = plan_memory(hellos);
  auto member = make_member(0, memory, share_files(ranks, memory));
  ranks.collect(FrameKind::ready, "mapping each other's memory", [](int, ByteReader&) {});
  ranks.release();
  return member;
}

/// The other ranks' side of their link.
class StartPeer {
 public:
  StartPeer(int rank, StartLink link, Deadline deadline, std::stop_token stop)
      : rank_(rank), link_(std::move(link)), deadline_(deadline), stop_(std::move(stop)) {}

  /// Receives the next frame, which must be of kind `expected`; `use` reads its rest.
  void receive(FrameKind expected, const std::function<void(ByteReader&, Frame&)>& use);
  void send(ByteView bytes);
  void send_failure(const StartFailure& cause) noexcept;

 private:
  StartLink::Received receive_any();

  int rank_;
  StartLink link_;
  Deadline deadline_;
  std::stop_token stop_;
};

StartLink::Received StartPeer::receive_any() {
  const Deadline longer = deadline_.is_never() ? deadline_ : Deadline::after(deadline_.remaining() + grace);
  if (wait_readable(std::array{link_.fd()}, longer, stop_).empty()) {
    throw Timeout(
        fmt::format("rank {} waited for rank 0 to connect all ranks; check that all have been started, or "
                    "raise the timeout",
                    rank_));
  }
  return link_.receive();
}

void StartPeer::receive(FrameKind expected, const std::function<void(ByteReader&, Frame&)>& use) {
  auto received = receive_any();
  while (received.kind == Kind::greeting) received = receive_any();
  if (received.kind == Kind::closed) {
    throw PeerLost(0, "rank 0 ended while the ranks were starting; its own output may say why");
  }
  if (received.kind == Kind::stranger) throw EngineError(fmt::format(not_from_a_rank, 0, "starting"));
  OpenedFrame opened = open_frame(received.frame.bytes);
  if (opened.kind != expected) throw EngineError("rank 0 sent an unexpected frame during the start");
  use(opened.rest, received.frame);
}

void StartPeer::send(ByteView bytes) {
  if (link_.send(bytes, {}, deadline_, stop_)) return;
  receive(FrameKind::failed, [](ByteReader&, Frame&) {});  // throws the failure that rank 0 sent before it closed, or
                                                           // PeerLost
}

void StartPeer::send_failure(const StartFailure& cause) noexcept {
  try {
    link_.send(encode(cause), {}, Deadline::now());
  } catch (const Error&) {  // rank 0 will see the link close
  }
}

std::shared_ptr<ShmEndpoint> follow(StartPeer& link, int rank, int size, const Options& options) {
  reserve_open_files(num_files_to_start(size), fmt::format("rank {}", rank));
  link.send(encode(make_hello(rank, size, options)));
  const std::size_t count = Files::count(static_cast<std::size_t>(size));
  std::vector<std::uint64_t> memory;
  std::vector<UniqueFd> fds;
  while (fds.size() < count) {
    link.receive(FrameKind::plan, [&](ByteReader& reader, Frame& frame) {
      memory = decode_plan(reader);
      if (memory.size() != static_cast<std::size_t>(size)) {
        throw EngineError("rank 0 was started with a different number of ranks; start all ranks with the same size");
      }
      if (frame.fds.empty() || frame.fds.size() > count - fds.size()) {
        throw EngineError(
            fmt::format("rank 0 did not send the {} files that {} ranks need; install the same release for all ranks",
                        count, size));
      }
      std::ranges::move(frame.fds, std::back_inserter(fds));
    });
  }
  Files files{std::move(fds[0]), std::move(fds[1]), {}};
  files.data.assign(std::move_iterator(fds.begin() + 2), std::move_iterator(fds.end()));
  auto member = make_member(rank, memory, std::move(files));
  link.send(encode(FrameKind::ready));
  link.receive(FrameKind::go, [](ByteReader&, Frame&) {});
  return member;
}

/// Runs one side of the start. If it throws, sends the failure to the other ranks before rethrowing.
template <typename Side, typename Call>
std::shared_ptr<ShmEndpoint> run(Side& side, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    side.send_failure(StartFailure::of(error));
    throw;
  }
}

}  // namespace

std::shared_ptr<ShmEndpoint> start(int rank, int size, StartConnections connected, const Options& options,
                                   Deadline deadline) {
  std::shared_ptr<ShmEndpoint> member;
  if (rank == 0) {
    StartLeader ranks(std::move(connected.links), deadline, options.stop);
    for (std::size_t i = 0; i < connected.hellos.size(); ++i) {
      ranks.set_process(static_cast<int>(i), connected.hellos[i].process);
    }
    member = run(ranks, [&] { return lead(ranks, std::move(connected.hellos), options); });
  } else {
    StartPeer link(rank, std::move(connected.links.front()), deadline, options.stop);
    member = run(link, [&] { return follow(link, rank, size, options); });
  }
  member->watch();
  return member;
}

}  // namespace levada::shm
