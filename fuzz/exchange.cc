// Any bytes as an ownership, as an exchange plan and as the JSON of samples: refused, or read, and written again the
// same. As what two ranks claim to hold: refused, or planned with.
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/exchange/claims.h"
#include "levada/exchange/planner.h"

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

void claim(levada::ByteView bytes) {
  const levada::ExchangeRequest request{
      {{{0, 2}, {"d", "a", "b"}}, {{1}, {"c", "a"}, {1, 2, true}}}, {"k"}, {"k"}, true};
  const levada::RequestedSamples requested(request);
  try {
    levada::Claims claims(requested, request.keys);
    for (const int rank : {0, 1}) claims.add(rank, bytes);
    const auto asked = claims.asked();
    const levada::Ownership held = std::move(claims).take();
    require(held.size() == requested.size());
    const auto plan = levada::plan_exchange(held, request, asked, {});
    require(plan.moved_bytes() == plan.lower_bound_bytes());
  } catch (const levada::CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  } catch (const levada::InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read(bytes, [](levada::ByteView each) { return levada::Ownership::decode(each); });
  read(bytes, [](levada::ByteView each) { return levada::ExchangePlan::decode(each); });
  claim(bytes);
  try {
    const auto samples = levada::SampleBatch::from_json(levada::as_text(bytes));
    require(levada::SampleBatch::from_json(samples.to_json()) == samples);
  } catch (const levada::InvalidArgument&) {
  }
  return 0;
}
