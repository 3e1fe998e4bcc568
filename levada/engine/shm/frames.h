// Small messages with file descriptors over the Unix sockets of the start.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"

namespace levada::shm {

/// The most descriptors that one message may carry.
inline constexpr std::size_t max_fds = 250;

struct Frame {
  Bytes bytes;
  std::vector<UniqueFd> fds;
};

/// A connected pair of the kind of socket that frames need. Throws EngineError.
std::pair<UniqueFd, UniqueFd> make_socket_pair();
/// Throws InvalidArgument unless frames can cross `socket`.
void expect_frame_socket(const UniqueFd& socket);

/// False when the other end is closed. Throws Timeout when it does not take the frame in time, EngineError.
bool send_frame(const UniqueFd& socket, ByteView bytes, std::span<const int> fds, Deadline deadline);

/// One frame that poll() has announced; empty when the other end is closed. Throws CorruptMessage, EngineError.
std::optional<Frame> receive_frame(const UniqueFd& socket);

/// Waits until some of the sockets can be read; their indexes. Empty at the deadline. Those that hold no descriptor are
/// passed over. Throws EngineError.
std::vector<std::size_t> wait_readable(std::span<const UniqueFd> sockets, Deadline deadline);

}  // namespace levada::shm
