// Ranks that nobody launched together find each other by the name of an abstract Unix socket, which vanishes with rank
// 0 and is in no file system.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/start.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {
namespace {

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const std::string& rendezvous) {
  Digest digest;
  digest.update(rendezvous);
  const std::string text = fmt::format("levada-{}-{}", ::getuid(), digest.hex());
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // not payload; abstract by its leading zero
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

UniqueFd make_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw EngineError(fmt::format("cannot meet other ranks ({})", system_error("socket", errno)));
  return socket;
}

bool same_user(const UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

UniqueFd listen_at(const std::string& rendezvous) {
  const Address address = address_of(rendezvous);
  UniqueFd listener = make_socket();
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
    if (errno == EADDRINUSE) {
      throw EngineError(
          fmt::format("another rank 0 waits at the rendezvous '{}' already; give each run a name of its own, "
                      "or end the other one",
                      rendezvous));
    }
    throw EngineError(fmt::format("cannot wait at the rendezvous '{}' ({})", rendezvous, system_error("bind", errno)));
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) {
    throw EngineError(
        fmt::format("cannot wait at the rendezvous '{}' ({})", rendezvous, system_error("listen", errno)));
  }
  return listener;
}

/// Those who have come to rank 0: strangers until they have said who they are.
class Door {
 public:
  Door(int size, std::string rendezvous)
      : rendezvous_(std::move(rendezvous)),
        hellos_(static_cast<std::size_t>(size)),
        sockets_(static_cast<std::size_t>(size)) {
    sockets_.push_back(listen_at(rendezvous_));
  }

  Connected gather(Deadline deadline) {
    while (!missing().empty()) {
      const auto readable = wait_readable(sockets_, deadline);
      if (readable.empty()) {
        throw Timeout(
            fmt::format("rank 0 waited at the rendezvous '{}' for rank(s) {}; see whether they have been started "
                        "with the same rendezvous, or raise the timeout",
                        rendezvous_, fmt::join(missing(), ", ")));
      }
      // From the back: who leaves the list must not shift who is still to be heard.
      for (auto index = readable.rbegin(); index != readable.rend(); ++index) {
        if (*index > size()) hear(*index);
        else if (*index == size()) let_in();
        else lost(static_cast<int>(*index));
      }
    }
    sockets_.resize(size());
    return {std::move(sockets_), std::move(hellos_)};
  }

  void tell(const Cause& cause) noexcept {
    for (std::size_t rank = 1; rank < size(); ++rank) {
      try {
        if (sockets_[rank]) send_frame(sockets_[rank], encode(cause), {}, Deadline::now());
      } catch (const Error&) {  // it will see the link's end
      }
    }
  }

 private:
  std::size_t size() const { return hellos_.size(); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < size(); ++rank) {
      if (!sockets_[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  void let_in() {
    UniqueFd link(::accept4(sockets_[size()].get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (link && same_user(link)) sockets_.push_back(std::move(link));
  }

  void hear(std::size_t index) {
    UniqueFd link = std::move(sockets_[index]);
    sockets_.erase(sockets_.begin() + static_cast<std::ptrdiff_t>(index));
    const auto frame = receive_frame(link);
    if (!frame) return;
    try {
      OpenedFrame opened = open_frame(frame->bytes);
      const Hello hello = decode_hello(opened.rest);
      admit(hello, std::move(link));
    } catch (const CorruptMessage&) {  // not a rank
    }
  }

  /// A rank that has said hello says nothing more here: that it can be heard means that it has ended.
  [[noreturn]] void lost(int rank) const {
    throw PeerLost(
        rank, fmt::format("rank {} (process {}) ended while the ranks were meeting; its own output may say why", rank,
                          hellos_[static_cast<std::size_t>(rank)].process));
  }

  void admit(const Hello& hello, UniqueFd link) {
    const auto ranks = static_cast<int>(size());
    const bool fits = hello.size == ranks && hello.rank > 0 && hello.rank < ranks;
    const auto index = static_cast<std::size_t>(hello.rank);
    if (fits && !sockets_[index]) {
      sockets_[index] = std::move(link);
      hellos_[index] = hello;
      return;
    }
    const std::string why =
        fits ? fmt::format("rank {} has come to the rendezvous '{}' already; start each rank once", hello.rank,
                           rendezvous_)
             : fmt::format("rank {} of {} comes to a rendezvous of {} ranks; start all ranks with the same size",
                           hello.rank, hello.size, ranks);
    send_frame(link, encode(Cause{.message = why}), {}, Deadline::now());
    if (!fits) throw EngineError(why);
  }

  std::string rendezvous_;
  std::vector<Hello> hellos_;      ///< by rank
  std::vector<UniqueFd> sockets_;  ///< the ranks that have arrived; the listener; those who have not spoken
};

}  // namespace

Connected gather(int size, const std::string& rendezvous, Deadline deadline) {
  Door door(size, rendezvous);
  try {
    return door.gather(deadline);
  } catch (const Error& error) {
    door.tell(Cause::of(error));
    throw;
  }
}

Connected find(int rank, const std::string& rendezvous, Deadline deadline) {
  constexpr Duration pause = std::chrono::milliseconds(5);
  const Address address = address_of(rendezvous);
  while (true) {
    UniqueFd link = make_socket();
    if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) == 0) {
      if (!same_user(link)) {
        throw EngineError(
            fmt::format("the rendezvous '{}' is held by a process of another user; give it another name", rendezvous));
      }
      Connected connected;
      connected.links.push_back(std::move(link));
      return connected;
    }
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      throw EngineError(
          fmt::format("cannot go to the rendezvous '{}' ({})", rendezvous, system_error("connect", errno)));
    }
    if (deadline.expired()) {
      throw Timeout(
          fmt::format("rank {} found no rank 0 at the rendezvous '{}'; see whether rank 0 has been started with "
                      "the same rendezvous, or raise the timeout",
                      rank, rendezvous));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace levada::shm
