// A rank's own memory: blocks out of it, and what comes back.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "levada/engine/shm/member.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace levada::shm {
namespace {

/// Between tries to get pages that the system would not give, so that whoever waits for them sleeps meanwhile.
constexpr auto refill_interval = std::chrono::milliseconds(100);

}  // namespace

std::optional<Block> Member::try_allocate(Group& group, std::size_t bytes) {
  expect_usable();
  const auto& data = memory_.data[static_cast<std::size_t>(rank_)];
  Arena::Taken taken;
  {
    const std::lock_guard lock(mutex_);
    look(group);
    group.check();
    const std::uint64_t most = std::min(arena_.capacity(), budget_.total());
    if (bytes > most) {
      throw InvalidArgument(
          fmt::format("a block of {} is more than the {} that the shm engine has for rank {}; send smaller messages, "
                      "or raise memory_bytes or the control group's memory limit",
                      format_bytes(bytes), format_bytes(most), group.rank));
    }
    if (!can_allocate(bytes)) return std::nullopt;
    taken = *arena_.take(std::max<std::size_t>(bytes, 1));
    for (const Range part : taken.fresh) budget_.spend(part.size());
    if (uses_.size() <= taken.slot) uses_.resize(taken.slot + 1);
  }
  if (!fill(taken.fresh)) {
    const std::lock_guard lock(mutex_);
    not_filled_until_ = Clock::now() + refill_interval;
    arena_.not_filled(taken.fresh);
    arena_.give_back(taken.slot);
    return std::nullopt;
  }
  return Block(data->memory().subspan(taken.block.offset, taken.block.size), shared_from_this());
}

bool Member::can_allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  sweep();
  auto fresh = arena_.fresh_bytes(bytes);
  if (!fresh || (*fresh > 0 && Clock::now() < not_filled_until_)) return false;
  if (*fresh == 0 || budget_.allows(*fresh)) return true;
  discard(arena_.trim());
  fresh = arena_.fresh_bytes(bytes);
  return fresh && budget_.allows(*fresh);
}

bool Member::fill(const std::vector<Range>& fresh) const {
  std::byte* const data = memory_.data[static_cast<std::size_t>(rank_)]->data();
  for (const Range range : fresh) {
    if (::madvise(data + range.begin, range.size(), MADV_POPULATE_WRITE) == 0) continue;
    if (errno != EINVAL) return false;
    for (std::uint64_t at = range.begin; at < range.end; at += page_bytes) {
      *reinterpret_cast<volatile char*>(data + at) = 0;  // before Linux 5.14
    }
  }
  return true;
}

std::uint64_t Member::discard(const std::vector<Range>& ranges) const {
  std::byte* const data = memory_.data[static_cast<std::size_t>(rank_)]->data();
  std::uint64_t bytes = 0;
  for (const Range range : ranges) {
    if (::madvise(data + range.begin, range.size(), MADV_REMOVE) == 0) bytes += range.size();
  }
  return bytes;
}

std::uint64_t Member::trim() {
  expect_usable();
  const std::lock_guard lock(mutex_);
  look();
  sweep();
  return discard(arena_.trim());
}

std::uint64_t Member::memory_in_use() {
  expect_usable();
  const std::lock_guard lock(mutex_);
  sweep();
  return arena_.taken();
}

std::uint32_t Member::slot_of(const Block& block) const {
  const auto* home = static_cast<const Block::Home*>(this);
  const std::byte* const data = memory_.data[static_cast<std::size_t>(rank_)]->data();
  if (block.home().get() == home) {
    if (const auto slot = arena_.find(static_cast<std::uint64_t>(block.memory().data() - data))) return *slot;
  }
  throw InvalidArgument("a block is published that this engine did not give; use try_allocate() of the same engine");
}

void Member::give_back(std::byte* data, std::size_t /*size*/) noexcept {
  if (!usable()) return;
  {
    const std::lock_guard lock(mutex_);
    const std::byte* const start = memory_.data[static_cast<std::size_t>(rank_)]->data();
    if (const auto slot = arena_.find(static_cast<std::uint64_t>(data - start))) arena_.give_back(*slot);
  }
  wake_if_waiting_for_space(rank_, memory_topic);
}

void Member::sweep() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    const std::uint32_t slot = in_flight_[i];
    if (!returned_by_all(slot)) {
      ++i;
      continue;
    }
    uses_[slot].stream.reset();
    arena_.give_back(slot);
    in_flight_[i] = in_flight_.back();
    in_flight_.pop_back();
  }
}

bool Member::returned_by_all(std::uint32_t slot) {
  const Use& use = uses_[slot];
  for (const int taker : use.stream->to) {
    Return word = control_.returns(rank_, slot, taker);
    const auto step = word.step(use.generation);
    if (step == Return::returned || peers_[static_cast<std::size_t>(taker)].gone) continue;
    const bool never_taken = step == Return::published && taker_over(*use.stream, taker) && word.drop(use.generation);
    if (!never_taken) return false;
  }
  return true;
}

std::vector<Engine::Holder> Member::holders(Group& group, Stream& stream) {
  expect_usable();
  const std::lock_guard lock(mutex_);
  look(group);
  group.check();
  std::vector<Engine::Holder> found;
  for (const int taker : stream.to) {
    Engine::Holder holder{taker, 0, 0};
    for (const std::uint32_t slot : in_flight_) {
      if (uses_[slot].stream.get() != &stream) continue;
      const auto step = control_.returns(rank_, slot, taker).step(uses_[slot].generation);
      if (step == Return::taken) ++holder.leased;
      if (step == Return::published && !taker_over(stream, taker)) ++holder.not_received;
    }
    if (holder.not_received + holder.leased > 0) found.push_back(holder);
  }
  return found;
}

}  // namespace levada::shm
