// Any bytes as an ownership, as an exchange plan and as the JSON of samples: refused, or read, and written again the
// same.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/exchange/exchange_plan.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename Decode>
void read(levada::ByteView bytes, Decode&& decode) {
  try {
    const levada::Bytes again = decode(bytes).encode();
    require(decode(again).encode() == again);
  } catch (const levada::CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read(bytes, [](levada::ByteView each) { return levada::Ownership::decode(each); });
  read(bytes, [](levada::ByteView each) { return levada::ExchangePlan::decode(each); });
  try {
    const auto samples = levada::SampleBatch::from_json(levada::as_text(bytes));
    require(levada::SampleBatch::from_json(samples.to_json()) == samples);
  } catch (const levada::InvalidArgument&) {
  }
  return 0;
}
