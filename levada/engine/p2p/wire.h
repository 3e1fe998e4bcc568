// What an engine of point-to-point messages asks of a transport, and what the transport asks of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"

namespace levada::p2p {

/// No head is longer, so that a transport whose receivers must know sizes can receive all of them in one size.
inline constexpr std::size_t most_head = std::size_t{256} << 10;

/// What one rank sends another at a time. The bytes stay as they are until the last copy of their hold is gone.
struct Frame {
  Lease head;
  Lease body;         ///< of a message that is too large for a head; without bytes otherwise
  bool last = false;  ///< nothing follows it to this peer
};

/// The engine's side. But for lost(), is_out(), all_are_out() and send_late(), calls come one at a time, from a thread
/// that holds no lock and is not inside Wire::send().
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Memory for the body that follows `head`, exactly as long; empty where none follows. A head that is none is the
  /// sender's fault and ends the group, not the caller.
  virtual Block room_for_body(int from, ByteView head) = 0;
  /// A frame has come, behind all that the same rank has sent before. `head` may be longer than what was sent.
  virtual void deliver(int from, ByteView head, Block body) = 0;
  /// A peer has ended without a last frame: nothing more comes from it. Nothing happens if its last frame has come.
  /// This may come from any thread.
  virtual void lost(int peer, std::string_view why) = 0;
  /// Whether a peer's last frame has come, or it is lost; of all of them: then there is nothing left to receive.
  virtual bool is_out(int peer) = 0;
  virtual bool all_are_out() = 0;
  /// Sends what was left to go in company once it has found none for a while. Returns when all peers are out: the wire
  /// has a thread of its own for it.
  virtual void send_late() = 0;
};

/// One rank's end of the transport.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const = 0;
  /// Each rank's host, numbered from 0.
  virtual const std::vector<int>& host_of() const = 0;
  virtual std::string name() const = 0;

  /// From now on what comes is delivered, by the wire's own threads, until all peers are out; as long the wire keeps
  /// the receiver.
  virtual void start(std::shared_ptr<Receiver> receiver) = 0;
  /// Sends a frame behind those before it. Does not block. One call at a time, from any thread. What goes wrong is told
  /// by lost().
  virtual void send(int peer, Frame frame) = 0;
};

}  // namespace levada::p2p
