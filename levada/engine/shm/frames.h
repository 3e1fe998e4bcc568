// Small messages with file descriptors over the Unix sockets of the start.
#pragma once

#include <optional>
#include <span>
#include <stop_token>
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

/// False when the other end is closed. Throws Timeout when it does not take the frame in time, EngineError, which also
/// ends the wait where `stop` is requested.
bool send_frame(const UniqueFd& socket, ByteView bytes, std::span<const int> fds, Deadline deadline,
                const std::stop_token& stop = {});

/// One frame that poll() has announced; empty when the other end is closed. Throws CorruptMessage, EngineError.
std::optional<Frame> receive_frame(const UniqueFd& socket);

/// Waits until some of the sockets can be read. Returns their indexes, or none at the deadline. Skips descriptors that
/// are -1. Throws EngineError, also if `stop` is requested.
std::vector<std::size_t> wait_readable(std::span<const int> sockets, Deadline deadline,
                                       const std::stop_token& stop = {});
/// Throws EngineError where `stop` is requested.
void throw_if_stopped(const std::stop_token& stop);

}  // namespace levada::shm
