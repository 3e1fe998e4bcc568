// Reads arbitrary bytes as another rank's Lookahead, which tells ranks about the next item of a pipeline.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/pipeline/epoch_end_barrier.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto lookahead = levada::decode<levada::pipeline::Lookahead>(std::as_bytes(std::span(data, size)));
    if (levada::decode<levada::pipeline::Lookahead>(levada::encode(lookahead)) != lookahead) std::abort();
  } catch (const levada::CorruptMessage&) {
  }
  return 0;
}
