#include "levada/engine/shm/start_link.h"

#include <utility>

#include "levada/base/error.h"
#include "levada/engine/shm/start_frames.h"

namespace levada::shm {

StartLink::StartLink(UniqueFd socket, LinkSide side, const std::optional<Secret>& secret)
    : socket_(std::move(socket)), side_(side), is_sealed_(secret.has_value()) {
  proof_.emplace(side, secret.value_or(Secret{}));
  send_frame(socket_, proof_->greeting(), {}, Deadline::now());
}

bool StartLink::send(ByteView frame, std::span<const int> fds, Deadline deadline, const std::stop_token& stop) {
  if (!is_sealed_) return send_frame(socket_, frame, fds, deadline, stop);
  return is_greeted() && send_frame(socket_, proof_->seal(frame), fds, deadline, stop);
}

StartLink::Received StartLink::receive() {
  auto frame = receive_frame(socket_);
  if (!frame) return {Received::Kind::closed};
  if (!is_greeted()) {
    const auto peer = proof_->greet(frame->bytes);
    if (peer == LinkProof::Peer::stranger) return {Received::Kind::stranger};
    if (peer == LinkProof::Peer::rank) return {Received::Kind::greeting};
    const bool is_rank_zero = side_ == LinkSide::listener;
    const Release own = own_release();
    throw EngineError(describe_mismatch("another rank of this host", is_rank_zero ? proof_->peer_release() : own,
                                        "rank 0", is_rank_zero ? own : proof_->peer_release()));
  }
  if (is_sealed_) {
    const auto opened = proof_->open(frame->bytes);
    if (!opened) return {Received::Kind::stranger};
    frame->bytes.resize(opened->size());
  }
  return {Received::Kind::frame, std::move(*frame)};
}

void StartLink::raise_failure() {
  Received received = receive();
  if (received.kind == Received::Kind::greeting) received = receive();
  if (received.kind == Received::Kind::frame) open_frame(received.frame.bytes);
}

std::vector<int> descriptors_of(std::span<const StartLink> links) {
  std::vector<int> fds;
  for (const StartLink& link : links) fds.push_back(link.fd());
  return fds;
}

}  // namespace levada::shm
