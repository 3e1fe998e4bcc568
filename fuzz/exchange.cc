// Reads arbitrary bytes as a directory and as the JSON of samples, which must survive a round trip; as what two ranks
// hold, and plans with it; as the rows of a plan; and as a message.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "levada/base/error.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/exchange/exchange_rows.h"
#include "levada/exchange/exchange_streams.h"
#include "levada/exchange/holdings.h"

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

void plan_with(levada::ByteView bytes) {
  const levada::ExchangeRequest request{
      {{{0, 2}, {"d", "a", "b"}}, {{1}, {"c", "a"}, {1, 2, true}}}, {"k"}, {"k"}, true};
  const levada::SampleIndex index(request.destinations);
  try {
    levada::HoldingsTable table(index, request.keys);
    for (const int rank : {0, 1}) table.add(rank, bytes);
    const auto requested = table.requested();
    const levada::SampleDirectory held = std::move(table).take();
    require(held.size() == index.size());
    const auto plan = levada::plan_exchange(held, request, requested, {});
    require(plan.moved_bytes() == plan.lower_bound_bytes());
    for (const bool to_all : {false, true}) {
      const auto rows = levada::encode_rows(plan, 3, to_all);
      for (int rank = 0; rank < 3; ++rank) {
        levada::decode_rows(*rows[static_cast<std::size_t>(rank)], rank, 3, index.size(), to_all);
      }
    }
  } catch (const levada::CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  } catch (const levada::InvalidArgument&) {
  }
}

/// Every entry of accepted rows must be within the rows.
void read_rows(levada::ByteView bytes, bool to_all) {
  try {
    const auto rows = levada::decode_rows(bytes, 1, 3, 4, to_all);
    for (const levada::ExchangeRow& row : rows.rows) {
      std::uint64_t sum = 0;
      rows.for_each_entry(
          row, [&](const levada::ExchangeItem&, std::size_t, std::size_t entry) { sum += rows.sizes[entry]; });
      const auto receivers = row.receivers();
      require(sum == row.bytes && receivers.empty() == to_all);
      require(to_all || (std::ranges::count(receivers, 1) == (row.from == 1 ? 0 : 1)));
    }
  } catch (const levada::CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  }
}

/// Every run of an accepted message must be inside the message or inside its sender's memory.
void read_runs(levada::ByteView bytes) {
  constexpr std::uint64_t max_bytes = 1 << 16;
  static const auto engine = levada::inproc::make_group(1, {.memory_bytes = max_bytes})[0];
  try {
    std::uint64_t sum = 0;
    for (const levada::ByteView run : levada::runs_of(*engine, 0, bytes, max_bytes)) {
      sum += run.size();
      require(engine->position_of(run) ||
              (run.data() >= bytes.data() && run.data() + run.size() <= bytes.data() + bytes.size()));
    }
    require(sum <= max_bytes);
  } catch (const levada::CorruptMessage& error) {
    require(error.offset() <= bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read(bytes, [](levada::ByteView each) { return levada::SampleDirectory::decode(each); });
  plan_with(bytes);
  for (const bool to_all : {false, true}) read_rows(bytes, to_all);
  read_runs(bytes);
  try {
    const auto samples = levada::SampleBatch::from_json(levada::as_text(bytes));
    require(levada::SampleBatch::from_json(samples.to_json()) == samples);
  } catch (const levada::InvalidArgument&) {
  }
  return 0;
}
