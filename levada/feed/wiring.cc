#include "levada/feed/wiring.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "levada/sources/source.h"

namespace levada {
namespace {

constexpr int report_window = 8;

bool receives(const Audience& audience, int rank) {
  return std::binary_search(audience.to.begin(), audience.to.end(), rank);
}

}  // namespace

bool FeedWiring::is_reader() const {
  return std::binary_search(readers.begin(), readers.end(), rank());
}

int FeedWiring::reader_index() const {
  return static_cast<int>(std::lower_bound(readers.begin(), readers.end(), rank()) - readers.begin());
}

int FeedWiring::own_audience() const {
  const auto own = std::find_if(audiences.begin(), audiences.end(), [&](const auto& a) { return receives(a, rank()); });
  return static_cast<int>(own - audiences.begin());
}

FeedWiring wire_feed(std::shared_ptr<Engine> engine, std::vector<Audience> audiences, int depth) {
  FeedWiring wiring;
  wiring.engine = std::move(engine);
  wiring.audiences = std::move(audiences);
  for (const Audience& audience : wiring.audiences) {
    wiring.readers.push_back(audience.from);
    wiring.units = std::max(wiring.units, audience.unit + 1);
  }
  std::sort(wiring.readers.begin(), wiring.readers.end());
  wiring.readers.erase(std::unique(wiring.readers.begin(), wiring.readers.end()), wiring.readers.end());

  Engine& group = *wiring.engine;
  const int rank = wiring.rank();
  for (const Audience& audience : wiring.audiences) {
    const bool member = audience.from == rank || receives(audience, rank);
    wiring.data.push_back(member ? group.open(audience.from, audience.to, depth) : nullptr);
  }
  std::vector<int> everybody(static_cast<std::size_t>(group.info().size));
  std::iota(everybody.begin(), everybody.end(), 0);
  // Readers are at most `depth` sent rounds and the round they hold ahead of the slowest rank. The window has room for
  // that many grants, the end, and the departures of a few ranks.
  wiring.decisions = group.open(wiring.lead(), everybody, depth + 8);
  for (const int from : everybody) {
    const bool member = rank == from || rank == wiring.lead();
    wiring.reports.push_back(member ? group.open(from, {wiring.lead()}, report_window) : nullptr);
  }
  return wiring;
}

SendObstacle try_send(Engine& engine, Channel& channel, const feed_protocol::Event& event) {
  const Bytes bytes = feed_protocol::encode(event);
  auto block = engine.try_allocate(bytes.size());
  if (!block) return {.memory = bytes.size()};
  std::copy(bytes.begin(), bytes.end(), block->memory().begin());
  if (!engine.try_publish(channel, *block, bytes.size())) return {.room = &channel};
  return {};
}

ReceivedEvent try_receive(Engine& engine, Channel& channel) {
  const Received received = engine.try_receive(channel);
  if (!received.message) return {.event = {}, .ended = received.ended};
  return {.event = feed_protocol::decode(received.message->bytes)};
}

SendObstacle Reporter::send(std::optional<feed_protocol::Event> event) {
  const std::lock_guard lock(mutex_);
  if (event) waiting_.push_back(std::move(*event));
  for (; !waiting_.empty(); waiting_.erase(waiting_.begin())) {
    if (const SendObstacle blocked = try_send(*wiring_.engine, channel(), waiting_.front())) return blocked;
  }
  return {};
}

std::vector<std::string> progress_of_readers(const FeedWiring& wiring) {
  std::vector<std::string> progress;
  for (const Audience& audience : wiring.audiences) {
    const auto status = wiring.engine->status(audience.from);
    const std::string_view detail(status.detail.data());
    if (detail.starts_with(rereading)) progress.emplace_back(detail.substr(0, detail.find(',')));
  }
  return progress;
}

}  // namespace levada
