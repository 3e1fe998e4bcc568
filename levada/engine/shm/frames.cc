#include "levada/engine/shm/frames.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <utility>

#include "levada/base/error.h"
#include "levada/engine/shm/memory.h"

namespace levada::shm {
namespace {

constexpr std::size_t max_bytes = 64 << 10;
constexpr Duration retry_pause = std::chrono::milliseconds(1);
constexpr std::chrono::milliseconds stop_check_interval(50);

union ControlBuffer {
  cmsghdr align;
  std::array<char, CMSG_SPACE(sizeof(int) * max_fds)> bytes;
};

void attach_fds(msghdr& message, ControlBuffer& buffer, std::span<const int> fds) {
  if (fds.empty()) return;
  message.msg_control = buffer.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());  // not payload: descriptors
}

std::vector<UniqueFd> detach_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));  // not payload: descriptors
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

std::pair<UniqueFd, UniqueFd> make_socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw EngineError(fmt::format("cannot connect ranks ({}); raise the number of open files (ulimit -n)",
                                  system_error("socketpair", errno)));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void expect_frame_socket(const UniqueFd& socket) {
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof(int);
  const bool fits = ::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
                    ::getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
  if (!fits)
    throw InvalidArgument("a link between ranks is not a Unix SOCK_SEQPACKET socket; create links with make_links()");
}

bool send_frame(const UniqueFd& socket, ByteView bytes, std::span<const int> fds, Deadline deadline,
                const std::stop_token& stop) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlBuffer buffer{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach_fds(message, buffer, fds);
  while (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return false;
    // The kernel limits the number of descriptors in transit. Other ranks receive theirs in the meantime.
    const bool later = errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS || errno == ENOBUFS;
    if (!later) throw EngineError(fmt::format("cannot send to a starting rank ({})", system_error("sendmsg", errno)));
    if (deadline.expired()) {
      throw Timeout(fmt::format("a starting rank does not read its link ({})", system_error("sendmsg", errno)));
    }
    throw_if_stopped(stop);
    std::this_thread::sleep_for(retry_pause);
  }
  return true;
}

std::optional<Frame> receive_frame(const UniqueFd& socket) {
  Frame frame;
  frame.bytes.resize(max_bytes);
  iovec part{frame.bytes.data(), frame.bytes.size()};
  ControlBuffer buffer{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = buffer.bytes.data();
  message.msg_controllen = buffer.bytes.size();
  ssize_t size = -1;
  do {
    // If the other end closes without having read everything, an error is reported once, before the data that it sent.
    size = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size == 0) return std::nullopt;
  if (size < 0)
    throw EngineError(fmt::format("cannot receive from a starting rank ({})", system_error("recvmsg", errno)));
  frame.fds = detach_fds(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw EngineError("a rank's shared memory could not be received; raise the number of open files (ulimit -n)");
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    throw CorruptMessage(max_bytes, "a starting rank sent an oversized frame");
  }
  frame.bytes.resize(static_cast<std::size_t>(size));
  return frame;
}

void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw EngineError("a rank was interrupted while the ranks were starting");
}

std::vector<std::size_t> wait_readable(std::span<const int> sockets, Deadline deadline, const std::stop_token& stop) {
  std::vector<pollfd> polled(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) polled[i] = {sockets[i], POLLIN, 0};
  while (true) {
    throw_if_stopped(stop);
    const auto max_wait = stop.stop_possible() ? stop_check_interval : std::chrono::milliseconds(INT_MAX);
    const auto left =
        deadline.is_never() ? max_wait : std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const int ms = static_cast<int>(std::min(left, max_wait).count());
    const int ready = ::poll(polled.data(), polled.size(), ms);
    if (ready < 0 && errno != EINTR) {
      throw EngineError(fmt::format("cannot wait for starting ranks ({})", system_error("poll", errno)));
    }
    if (ready > 0 || deadline.expired()) break;
  }
  std::vector<std::size_t> readable;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) readable.push_back(i);
  }
  return readable;
}

}  // namespace levada::shm
