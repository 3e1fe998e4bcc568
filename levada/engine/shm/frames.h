// Sends and receives small messages with file descriptors over the Unix sockets that ranks start with.
#pragma once

#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"

namespace levada::shm {

/// Maximum number of descriptors in one message.
inline constexpr std::size_t max_fds = 250;

struct Frame {
  Bytes bytes;
  std::vector<UniqueFd> fds;
};

/// Returns a connected pair of sockets for frames. Throws EngineError.
std::pair<UniqueFd, UniqueFd> make_socket_pair();
/// Throws InvalidArgument unless `socket` can carry frames.
void expect_frame_socket(const UniqueFd& socket);

/// Sends one frame. Returns false if the other end is closed. Throws Timeout if the other end does not accept the frame
/// by the deadline, and EngineError on failure or if `stop` is requested.
bool send_frame(const UniqueFd& socket, ByteView bytes, std::span<const int> fds, Deadline deadline,
                const std::stop_token& stop = {});

/// Receives one frame, after poll() has reported that the socket is readable. Returns nothing if the other end is
/// closed. Throws CorruptMessage or EngineError.
std::optional<Frame> receive_frame(const UniqueFd& socket);

/// Waits until at least one of the sockets is readable. Returns the indexes of all that are, or none at the deadline.
/// Skips descriptors that are -1. Throws EngineError, also if `stop` is requested.
std::vector<std::size_t> wait_readable(std::span<const int> sockets, Deadline deadline,
                                       const std::stop_token& stop = {});
/// Throws EngineError if `stop` is requested.
void throw_if_stopped(const std::stop_token& stop);

}  // namespace levada::shm
