// One end of a link between rank 0 and another rank during the start.
#pragma once

#include <optional>
#include <span>
#include <stop_token>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/secret.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/link_proof.h"
#include "levada/engine/shm/frames.h"

namespace levada::shm {

/// Sends and receives frames over a socket whose ends greet each other first. Movable; may be empty.
class StartLink {
 public:
  StartLink() = default;
  /// Sends the greeting. With a `secret`, every frame is sealed, and the other end is a stranger until it has proven
  /// that it knows the secret. A socket that a rank has inherited needs no secret, because its other end cannot be a
  /// stranger.
  StartLink(UniqueFd socket, LinkSide side, const std::optional<Secret>& secret);

  explicit operator bool() const { return static_cast<bool>(socket_); }
  /// Returns the socket's descriptor, or -1 if the link is empty.
  int fd() const { return socket_ ? socket_.get() : -1; }
  const UniqueFd& socket() const { return socket_; }
  bool is_greeted() const { return proof_ && proof_->is_greeted(); }

  /// Returns false if the other end is closed, or has not greeted a link with a secret. Throws what send_frame()
  /// throws.
  bool send(ByteView frame, std::span<const int> fds, Deadline deadline, const std::stop_token& stop = {});

  /// The result of receive().
  struct Received {
    enum class Kind : std::uint8_t {
      closed,    ///< the other end is closed
      stranger,  ///< data that no rank of the job sends
      greeting,
      frame,
    };
    Kind kind;
    Frame frame = {};
  };
  /// Receives the event that poll() has reported. Throws EngineError if the other end is a rank that runs another
  /// release, and what receive_frame() throws.
  Received receive();
  /// Throws the failure that the other end has sent, if any. Requires that the other end is closed or has sent
  /// something.
  void raise_failure();

 private:
  UniqueFd socket_;
  LinkSide side_ = LinkSide::caller;
  bool is_sealed_ = false;
  std::optional<LinkProof> proof_;
};

/// Returns the links' descriptors, for wait_readable().
std::vector<int> descriptors_of(std::span<const StartLink> links);

}  // namespace levada::shm
