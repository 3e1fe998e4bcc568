// Lets the two ends of a link prove to each other that they belong to one job. Bytes in, bytes out: no sockets.
#pragma once

#include <cstdint>
#include <optional>

#include "levada/base/bytes.h"
#include "levada/base/secret.h"
#include "levada/engine/greeting.h"

namespace levada {

enum class LinkSide : std::uint8_t { listener = 0, caller = 1 };

/// One end's part in authenticating a link. Each end first sends a greeting with a fresh challenge. Every later frame
/// carries a proof over both challenges, the sender's side and the frame. Replayed and reflected frames are therefore
/// rejected, and the secret never crosses the link.
///
/// The greeting also has a proof. A process that has seen the proof can replay it, so it shows only that some rank runs
/// the greeting's release. That keeps a stranger from ending a start by claiming another release.
class LinkProof {
 public:
  LinkProof(LinkSide side, const Secret& secret, const Release& release = own_release());

  const Greeting& greeting() const { return greeting_; }

  enum class Peer : std::uint8_t { stranger, rank, rank_of_another_release };
  /// Receives the other end's first frame.
  Peer greet(ByteView bytes);
  bool is_greeted() const { return is_greeted_; }
  /// Returns the release that the other end runs, if it is a rank.
  const Release& peer_release() const { return peer_release_; }

  /// Returns the frame with its proof appended. Requires that greet() has returned `rank`.
  Bytes seal(ByteView frame) const;
  /// Returns the frame without its proof, or nothing if the proof is wrong.
  std::optional<ByteView> open(ByteView sealed) const;

 private:
  Bytes statement(LinkSide sender, ByteView frame) const;

  LinkSide side_;
  Secret secret_;
  Greeting greeting_;
  Challenge challenge_;
  Challenge peer_challenge_{};
  Release peer_release_;
  bool is_greeted_ = false;
};

}  // namespace levada
