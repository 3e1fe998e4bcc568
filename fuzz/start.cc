// Reads arbitrary bytes as the greetings and frames with which the ranks of a host start: rejected, or read without a
// fault. A link must not open a frame that its other end has not sealed.
#include <array>
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/base/secret.h"
#include "levada/engine/greeting.h"
#include "levada/engine/link_proof.h"
#include "levada/engine/shm/start_frames.h"

namespace {

namespace shm = levada::shm;

void read_frame(levada::ByteView bytes) {
  try {
    shm::OpenedFrame frame = shm::open_frame(bytes);
    if (frame.kind == shm::FrameKind::hello) static_cast<void>(shm::decode_hello(frame.rest));
    if (frame.kind == shm::FrameKind::plan) static_cast<void>(shm::decode_plan(frame.rest));
  } catch (const levada::Error&) {
  }
}

void read_greeting(levada::ByteView bytes) {
  levada::Greeting greeting = levada::group_greeting("host0");
  for (std::size_t i = 0; i < bytes.size() && i < greeting.size(); ++i) greeting[i] = bytes[i];
  try {
    levada::check_greetings(std::array{levada::group_greeting("host0"), greeting});
  } catch (const levada::Error&) {
  }
}

/// A stranger without the secret must not get past a greeting, nor get a frame opened after a rank's greeting.
void meet_stranger(levada::ByteView bytes) {
  static const levada::Secret secret = levada::random_secret();
  levada::LinkProof met(levada::LinkSide::listener, secret);
  if (met.greet(bytes) != levada::LinkProof::Peer::stranger) std::abort();
  met.greet(levada::LinkProof(levada::LinkSide::caller, secret).greeting());
  if (met.open(bytes)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const levada::ByteView bytes = std::as_bytes(std::span(data, size));
  read_frame(bytes);
  read_greeting(bytes);
  meet_stranger(bytes);
  return 0;
}
