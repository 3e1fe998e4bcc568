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

/// The unit that one rank sends another. The bytes stay unchanged until the last copy of their hold is destroyed.
struct Frame {
  Lease header;
  Lease body;  ///< body of a message that does not fit into a header; otherwise empty
};

/// The engine's side. One thread at a time calls room_for_body() and deliver(); it holds no lock and is not inside
/// Transport::send(). Any thread may call the other functions.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Returns memory for the body that follows `header`, at least as long. Returns an empty block if no body follows, or
  /// if is_closed() has become true, because the header is malformed or no memory is left. Never throws.
  virtual Block room_for_body(int from, ByteView header) = 0;
  /// Handles a frame that has arrived; each peer's frames arrive in the order sent. `header` may be longer than what
  /// was sent, and so may `body_bytes`, the number of bytes of `body` that were received. If they are fewer than the
  /// header says, the frame is malformed.
  virtual void deliver(int from, ByteView header, Block body, std::size_t body_bytes) = 0;
  /// Reports that these peers have ended without their last frames, all at once, such as those of a host: nothing more
  /// arrives from them. Ignores a peer whose last frame has arrived. Sends each peer a notice of it, because it may be
  /// alive.
  virtual void lost(std::span<const int> peers, std::string_view why) = 0;
  void lost(int peer, std::string_view why) { lost(std::span(&peer, 1), why); }
  /// Returns whether nothing more will be received from a peer: its last frame has arrived, it is lost, or this rank
  /// could not receive a body from it. all_closed() returns whether that holds for all peers.
  virtual bool is_closed(int peer) = 0;
  virtual bool all_closed() = 0;
  /// Returns whether this rank has seen a loss, or the end of a group for a cause, and has entered no group since.
  /// Leaving then takes no longer than the others may need to learn of it.
  virtual bool has_failed() = 0;
  /// Sends the frames that were deferred for batching.
  virtual void flush_deferred() = 0;
};

/// One rank's end of the transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  /// Each rank's host, numbered from 0.
  virtual const std::vector<int>& host_of() const = 0;
  virtual std::string name() const = 0;
  /// Maximum length of a header, so that transports that need sizes in advance can receive all headers in one size. At
  /// least 4 KiB. The same on all ranks.
  virtual std::size_t max_header_bytes() const = 0;

  /// Called once. Starts delivering incoming frames, on the transport's own threads or in progress(), until every peer
  /// has closed; keeps the receiver alive until then. The transport joins its threads itself.
  virtual void start(std::shared_ptr<Receiver> receiver) = 0;
  /// Sends a frame to each of these peers, after all earlier frames. Does not block. One call at a time, from any
  /// thread. If it throws, all these peers count as lost; Receiver::lost() reports a single peer that fails.
  virtual void send(std::span<const int> peers, const Frame& frame) = 0;
  /// The last frame to `peer` has been sent. Same calling rules as send().
  virtual void close(int /*peer*/) {}
  /// Calls Receiver::flush_deferred() once, at about that time. May be called from any thread, also inside deliver().
  virtual void schedule_flush(Clock::time_point at) = 0;
  /// Makes progress. Called without locks by threads that are about to wait, possibly by several at once. Returns how
  /// long the thread may sleep before it calls again; Duration::max(), the default, if the transport has threads.
  virtual Duration progress() { return Duration::max(); }
};

}  // namespace levada::p2p
