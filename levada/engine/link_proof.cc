#include "levada/engine/link_proof.h"

#include <algorithm>
#include <span>
#include <utility>

namespace levada {
namespace {

LinkSide opposite(LinkSide side) {
  return side == LinkSide::caller ? LinkSide::listener : LinkSide::caller;
}

/// Returns the challenge of a greeting, which precedes the greeting's proof.
Challenge challenge_of(const GreetingRest& rest) {
  Challenge challenge;
  std::copy_n(rest.begin(), challenge.size(), challenge.begin());  // not payload: a challenge
  return challenge;
}

Bytes greeting_statement(LinkSide sender, const Greeting& greeting) {
  ByteWriter writer;
  writer.put(sender);
  writer.put_bytes(ByteView(greeting).first(sizeof(Greeting) - sizeof(Proof)));
  return std::move(writer).take();
}

Greeting make_greeting(LinkSide side, const Secret& secret, const Challenge& challenge, const Release& release) {
  GreetingRest rest{};
  std::ranges::copy(challenge, rest.begin());  // not payload: a challenge
  Greeting greeting = levada::greeting(rest, release);
  const Proof proof = prove(secret, greeting_statement(side, greeting));
  std::ranges::copy(proof, greeting.end() - sizeof(Proof));  // not payload: a proof
  return greeting;
}

}  // namespace

LinkProof::LinkProof(LinkSide side, const Secret& secret, const Release& release)
    : side_(side), secret_(derive_secret(secret, "levada link")), challenge_(random_challenge()) {
  greeting_ = make_greeting(side, secret_, challenge_, release);
}

LinkProof::Peer LinkProof::greet(ByteView bytes) {
  const auto release = release_of(bytes);
  if (!release) return Peer::stranger;
  Greeting greeting;
  std::ranges::copy(bytes, greeting.begin());  // not payload: a greeting
  const ByteView claimed = bytes.last(sizeof(Proof));
  if (!is_proven(secret_, greeting_statement(opposite(side_), greeting), claimed)) return Peer::stranger;
  peer_challenge_ = challenge_of(rest_of(greeting));
  peer_release_ = *release;
  is_greeted_ = true;
  return release_of(greeting_) == release ? Peer::rank : Peer::rank_of_another_release;
}

Bytes LinkProof::statement(LinkSide sender, ByteView frame) const {
  const bool is_mine = sender == side_;
  ByteWriter writer;
  writer.put(sender);
  writer.put_bytes(is_mine ? challenge_ : peer_challenge_);
  writer.put_bytes(is_mine ? peer_challenge_ : challenge_);
  writer.put_bytes(frame);
  return std::move(writer).take();
}

Bytes LinkProof::seal(ByteView frame) const {
  const Proof proof = prove(secret_, statement(side_, frame));
  Bytes sealed(frame.begin(), frame.end());
  sealed.insert(sealed.end(), proof.begin(), proof.end());
  return sealed;
}

std::optional<ByteView> LinkProof::open(ByteView sealed) const {
  if (!is_greeted_ || sealed.size() < sizeof(Proof)) return {};
  const ByteView frame = sealed.first(sealed.size() - sizeof(Proof));
  if (!is_proven(secret_, statement(opposite(side_), frame), sealed.last(sizeof(Proof)))) return {};
  return frame;
}

}  // namespace levada
