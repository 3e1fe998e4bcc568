// What an engine of point-to-point messages asks of a transport, and what the transport asks of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/engine/engine.h"

namespace levada::p2p {

/// What one rank sends another at a time. The bytes stay as they are until the last copy of their hold is gone.
struct Frame {
  Lease header;
  Lease body;  ///< of a message that does not fit into a header; else without bytes
};

/// The engine's side. room_for_body() and deliver() are called by one thread at a time, which holds no lock and is not
/// inside Transport::send(); the others by any thread.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Returns memory for the body that follows `header`, at least as long; empty where none follows, or where
  /// is_closed() has become true, because the header is malformed or no memory is left. Never throws.
  virtual Block room_for_body(int from, ByteView header) = 0;
  /// A frame has arrived, behind all that the same rank has sent before. `header` may be longer than what was sent, and
  /// so may `body_bytes`, the number of bytes of `body` that were received. If they are fewer than the header says, the
  /// frame is malformed.
  virtual void deliver(int from, ByteView header, Block body, std::size_t body_bytes) = 0;
  /// These peers have ended without their last frames, all at once, such as those of a host: nothing more comes from
  /// them. Nothing happens to one whose last frame has arrived. Each is told so, for it may live.
  virtual void lost(std::span<const int> peers, std::string_view why) = 0;
  void lost(int peer, std::string_view why) { lost(std::span(&peer, 1), why); }
  /// Returns whether nothing more is to be received from a peer: its last frame has arrived, it is lost, or this rank
  /// could not receive a body from it. all_closed(): whether that holds for all of them.
  virtual bool is_closed(int peer) = 0;
  virtual bool all_closed() = 0;
  /// Returns whether this rank has seen a loss, or the end of a group for a cause, and has entered no group since:
  /// leaving then takes no longer than the others may need to hear of it.
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
  /// No header is longer, so that receivers that must know sizes beforehand can receive all headers in one size. At
  /// least 4 KiB. The same on all ranks.
  virtual std::size_t max_header_bytes() const = 0;

  /// Called once. Starts delivering incoming frames, on threads of the transport's own or in progress(), until every
  /// peer has closed; keeps the receiver so long. The transport joins its threads itself.
  virtual void start(std::shared_ptr<Receiver> receiver) = 0;
  /// Sends a frame to each of these peers, behind the frames before it. Does not block. One call at a time, from any
  /// thread. If it throws, all these peers count as lost; one that fails alone is reported by Receiver::lost().
  virtual void send(std::span<const int> peers, const Frame& frame) = 0;
  /// The last frame to `peer` has been sent. Called as send() is.
  virtual void close(int /*peer*/) {}
  /// Calls Receiver::flush_deferred() once, at about that time. Called from any thread, also inside deliver().
  virtual void schedule_flush(Clock::time_point at) = 0;
  /// Called without locks by threads that are about to wait, perhaps by several at once: moves what can be moved.
  /// Returns how long the thread may sleep before it calls again; Duration::max(), as by default, where the transport
  /// has threads.
  virtual Duration progress() { return Duration::max(); }
};

}  // namespace levada::p2p
