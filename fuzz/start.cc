// Frames with which the ranks of a host start, out of any bytes: refused, or read without a fault.
#include <cstdint>

#include "levada/base/error.h"
#include "levada/engine/shm/start_frames.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace shm = levada::shm;
  const levada::ByteView bytes = std::as_bytes(std::span(data, size));
  try {
    shm::OpenedFrame frame = shm::open_frame(bytes);
    if (frame.kind == shm::FrameKind::hello) static_cast<void>(shm::decode_hello(frame.rest));
    if (frame.kind == shm::FrameKind::plan) static_cast<void>(shm::decode_plan(frame.rest));
  } catch (const levada::Error&) {
  }
  return 0;
}
