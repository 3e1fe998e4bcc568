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

/// How a receiver sees what it is sent.
enum class Access : std::uint8_t {
  read_only,  ///< views of the sender's memory; nothing is copied
  copy,       ///< memory of its own
  private_,   ///< to be written, unseen by others: a private view where the engine has one, else memory of its own
};

/// "read_only", "copy", "private".
std::string_view to_string(Access access);
/// The inverse of to_string(). Throws InvalidArgument, saying that `what` must be one of them.
Access parse_access(std::string_view word, std::string_view what = "access");

/// Receives the messages of one channel and takes them apart. One thread at a time; what they hold lives on its own.
class Inbox {
 public:
  /// At most `keep` messages stay views of the sender's memory at a time; further ones come as copies, so that a caller
  /// that keeps them never stops the sender.
  Inbox(std::shared_ptr<Engine> engine, std::shared_ptr<Channel> channel, Access access, int keep)
      : engine_(std::move(engine)), channel_(std::move(channel)), access_(access), keep_(keep) {}

  struct Arrival {
    Bytes envelope;
    FlatTree content;
    std::uint64_t tensor_bytes = 0;
    bool copied = false;      ///< whether it came as a copy because `keep` were held
    Clock::time_point there;  ///< when the engine had given it

    Tree tree() const { return unflatten(content); }
  };
  /// The next message; empty when none is there (see ended()). Throws CorruptMessage, and what Engine::try_receive()
  /// does.
  std::optional<Arrival> try_receive();
  /// Whether try_receive() has come to the end of the channel.
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
  std::size_t largest_ = 0;  ///< message
  SchemaCache schemas_;
  std::shared_ptr<std::atomic<int>> held_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace levada
