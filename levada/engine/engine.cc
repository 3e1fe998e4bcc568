#include "levada/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "levada/base/text.h"

namespace levada {
namespace {

/// Leaves room for a terminating zero.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  std::ranges::copy(cut_text(text, N - 1), to.begin());  // not payload: a status
}

}  // namespace

std::string Cause::text() const {
  const std::string name = rank >= 0 ? fmt::format("rank {}", rank) : "a rank outside this group";
  switch (kind) {
    case ErrorKind::peer_lost:
      return fmt::format("{} is lost{}: {}", name, step >= 0 ? fmt::format(", last reported at step {}", step) : "",
                         detail);
    case ErrorKind::timeout: return fmt::format("{} left {}", name, detail);
    case ErrorKind::corrupt_message: return fmt::format("{} sent a malformed message: {}", name, detail);
    case ErrorKind::invalid_argument: return fmt::format("{} differs from the others: {}", name, detail);
    default: return fmt::format("{} aborted: {}", name, detail);
  }
}

void Cause::raise() const {
  if (kind == ErrorKind::timeout || kind == ErrorKind::peer_lost) throw PeerLost(rank, text());
  throw_error(kind, text());
}

Duration WaitFor::poll_before_sleep(Deadline deadline) const {
  if (poll == nullptr || !*poll) return deadline.remaining();
  (*poll)();
  return std::min(deadline.remaining(), poll_interval);
}

bool Engine::shares_memory() const {
  for (int rank = 0; rank < info().size; ++rank) {
    if (!shares_memory(rank)) return false;
  }
  return true;
}

std::span<std::byte> Engine::make_private(Channel& /*channel*/, Lease& /*lease*/) {
  return {};
}

Status Status::make(std::string_view operation, std::int64_t step, int waiting_for, std::string_view detail) {
  Status status;
  put_text(status.operation, operation);
  put_text(status.detail, detail);
  status.step = step;
  status.since_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  status.waiting_for = waiting_for;
  return status;
}

Status Status::read(ByteView written) {
  Status status;
  std::memcpy(static_cast<void*>(&status), written.data(), sizeof(status));  // not payload: a status
  status.operation.back() = 0;
  status.detail.back() = 0;
  status.since_ns = std::max<std::int64_t>(status.since_ns, 0);
  return status;
}

}  // namespace levada
