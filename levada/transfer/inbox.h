// The receiving end of a stream of trees.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "levada/engine/engine.h"
#include "levada/tensor/buffer_pool.h"
#include "levada/tree/codec.h"

namespace levada {

/// How a receiver accesses the messages that it receives.
enum class Access : std::uint8_t {
  read_only,  ///< views of the sender's memory, without copies
  copy,       ///< a copy in the receiver's memory
  private_,   ///< writable memory that other ranks do not see: a private view if the engine has one, otherwise a copy
};

/// Returns "read_only", "copy" or "private".
std::string_view to_string(Access access);
/// Parses a result of to_string(). Otherwise throws InvalidArgument, which lists the values that `what` may have.
Access parse_access(std::string_view word, std::string_view what = "access");

/// Receives and decodes the messages of one channel. Used by one thread at a time. The trees that it returns may
/// outlive it.
class Inbox {
 public:
  /// At most `keep` received messages are views of the sender's memory at a time. Further messages are copied, so that
  /// a caller that keeps messages never blocks the sender.
  Inbox(std::shared_ptr<Engine> engine, std::shared_ptr<Channel> channel, Access access, int keep)
      : engine_(std::move(engine)), channel_(std::move(channel)), access_(access), keep_(keep) {}

  struct Arrival {
    Bytes envelope;
    FlatTree content;
    std::uint64_t tensor_bytes = 0;
    bool copied = false;      ///< whether it was copied because the limit `keep` was reached
    Clock::time_point there;  ///< time at which the engine returned it

    Tree tree() const { return unflatten(content); }
  };
  /// Returns the next message, or nothing if none has arrived (see ended()). Throws CorruptMessage, and whatever
  /// Engine::try_receive() throws.
  std::optional<Arrival> try_receive();
  /// Returns whether try_receive() has reached the end of the channel.
  bool ended() const { return ended_; }

  Channel& channel() { return *channel_; }

 private:
  std::shared_ptr<const void> counted(std::shared_ptr<const void> hold);
  Tensor copy_of(const TensorView& tensor);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Channel> channel_;
  Access access_;
  int keep_;
  bool ended_ = false;
  BufferPool copies_;
  std::size_t largest_ = 0;  ///< size of the largest message so far
  SchemaCache schemas_;
  std::shared_ptr<std::atomic<int>> held_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace levada
