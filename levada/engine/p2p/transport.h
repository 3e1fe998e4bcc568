// The interface between an engine of point-to-point messages and its transport, in both directions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"

namespace levada::p2p {

/// The unit that one rank sends to another. Its bytes do not change until the last copy of their hold is destroyed.
struct Frame {
  Lease header;
  Lease body;  ///< body of a message that does not fit into a header; otherwise empty
};

/// The engine's side. Only one thread at a time may call room_for_body() and deliver(); it must hold no lock and not be
/// inside Transport::send(). Any thread may call the other functions.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Returns memory for the body that follows `header`, large enough for it. Returns an empty block if no body follows,
  /// or if is_closed() has become true because the header is malformed or there is no memory left. Never throws.
  virtual Block room_for_body(int from, ByteView header) = 0;
  /// Handles a frame that has arrived. Each peer's frames must be delivered in the order sent. `body_bytes` is the
  /// number of bytes received into `body`. `header` and `body_bytes` may be longer than what was sent. If `body_bytes`
  /// is less than the header states, the frame is malformed.
  virtual void deliver(int from, ByteView header, Block body, std::size_t body_bytes) = 0;
  /// Reports that these peers, such as all those of one host, have ended without sending their last frames: nothing
  /// more arrives from them. Ignores peers whose last frame has arrived. Sends each peer a notice, because it may be
  /// alive.
  virtual void lost(std::span<const int> peers, std::string_view why) = 0;
  void lost(int peer, std::string_view why) { lost(std::span(&peer, 1), why); }
  /// Returns whether nothing more will be received from a peer, because its last frame has arrived, it is lost, or this
  /// rank could not receive a body from it. all_closed() returns whether that holds for all peers.
  virtual bool is_closed(int peer) = 0;
  virtual bool all_closed() = 0;
  /// Returns whether this rank has seen a loss, or the end of a group for a cause, and has entered no group since. If
  /// so, this rank leaves as soon as the other ranks have had time to detect it.
  virtual bool has_failed() = 0;
  /// Sends the frames that were deferred for batching.
  virtual void flush_deferred() = 0;
};

/// One rank's end of the transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  /// Returns each rank's host, numbered from 0.
  virtual const std::vector<int>& host_of() const = 0;
  virtual std::string name() const = 0;
  /// Returns the maximum length of a header, so that a transport that needs sizes in advance can receive all headers in
  /// one size. At least 4 KiB; the same on all ranks.
  virtual std::size_t max_header_bytes() const = 0;

  /// Starts delivering incoming frames, on the transport's own threads or in progress(), until every peer has closed.
  /// Keeps the receiver alive until then. Called once. The transport joins its own threads.
  virtual void start(std::shared_ptr<Receiver> receiver) = 0;
  /// Sends a frame to each of these peers, after all earlier frames. Does not block. One call at a time, from any
  /// thread. If it throws, all these peers count as lost; Receiver::lost() reports a single peer that fails.
  virtual void send(std::span<const int> peers, const Frame& frame) = 0;
  /// Called when the last frame to `peer` has been sent. Same calling rules as send().
  virtual void close(int /*peer*/) {}
  /// Schedules one call of Receiver::flush_deferred() at about that time. May be called from any thread, including
  /// inside deliver().
  virtual void schedule_flush(Clock::time_point at) = 0;
  /// Makes progress. Called without locks by threads that are about to wait, possibly by several concurrently. Returns
  /// how long the thread may sleep before it calls again: Duration::max(), the default, if the transport has threads.
  virtual Duration progress() { return Duration::max(); }
};

}  // namespace levada::p2p
