#include "levada/engine/shm/control.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace levada::shm {
namespace {

constexpr std::uint64_t rank_bytes = align_up(sizeof(RankPage), page_bytes);
constexpr std::uint64_t ring_bytes = align_up(sizeof(Ring::State), page_bytes);

std::uint64_t acks_bytes(int size) {
  return align_up(std::uint64_t{Control::slots(size)} * static_cast<std::uint64_t>(size) * sizeof(FutexWord),
                  page_bytes);
}
std::uint64_t acks_start(int size) {
  return page_bytes + rank_bytes * static_cast<std::uint64_t>(size);
}
std::uint64_t rings_start(int size) {
  return acks_start(size) + acks_bytes(size) * static_cast<std::uint64_t>(size);
}

}  // namespace

void Board::post(const Status& status) {
  std::array<std::uint64_t, words> copy;
  std::memcpy(copy.data(), &status, sizeof(status));  // not payload: a status
  const std::uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  // Store each word with release order, so that a reader that sees any of them also sees the odd version.
  for (std::size_t i = 0; i < words; ++i) words_[i].store(copy[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

Status Board::read() const {
  constexpr int tries = 1000;  // its writer may have died while writing
  for (int i = 0; i < tries; ++i) {
    std::array<std::uint64_t, words> copy;
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    for (std::size_t w = 0; w < words; ++w) copy[w] = words_[w].load(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before)
      return Status::read(std::as_bytes(std::span(copy)));
    std::this_thread::yield();
  }
  return {};
}

std::uint64_t Control::bytes(int size) {
  const auto ranks = static_cast<std::uint64_t>(size);
  return rings_start(size) + ring_bytes * ranks * ranks;
}

std::uint32_t Control::slots(int size) {
  return std::clamp(static_cast<std::uint32_t>((1 << 20) / size), 4096u, 32768u);
}

RankPage& Control::page(int rank) const {
  return *reinterpret_cast<RankPage*>(memory_ + page_bytes + rank_bytes * static_cast<std::uint64_t>(rank));
}

Ring Control::ring(int from, int to) const {
  const auto index = static_cast<std::uint64_t>(from) * static_cast<std::uint64_t>(size_) + static_cast<unsigned>(to);
  return Ring(*reinterpret_cast<Ring::State*>(memory_ + rings_start(size_) + ring_bytes * index));
}

SlotAck Control::ack(int sender, std::uint32_t slot, int receiver) const {
  std::byte* const table = memory_ + acks_start(size_) + acks_bytes(size_) * static_cast<std::uint64_t>(sender);
  return SlotAck(reinterpret_cast<FutexWord*>(
      table)[std::uint64_t{slot} * static_cast<unsigned>(size_) + static_cast<unsigned>(receiver)]);
}

bool Control::all_beyond(SlotAck::Step step, int sender, std::uint32_t slot, std::uint32_t generation,
                         std::span<const int> receivers) const {
  return std::none_of(receivers.begin(), receivers.end(), [&](int receiver) {
    const auto at = ack(sender, slot, receiver).step(generation);
    return at == SlotAck::published || at == step;
  });
}

void Doorbell::ring(WakeMask mask) {
  if (sleepers.load(std::memory_order_seq_cst) == 0) return;
  count.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(count, mask);
}

void Control::raise_alarm() const {
  alarm().fetch_add(1, std::memory_order_seq_cst);
  for (int rank = 0; rank < size_; ++rank) {
    page(rank).own.ring();
    page(rank).sends.ring();
  }
}

void Control::note_end(int rank) const {
  RankPage& there = page(rank);
  const bool left = there.left.load(std::memory_order_seq_cst) != 0;
  FutexWord& word = left ? there.gone : there.dead;
  std::uint32_t none = 0;
  if (word.compare_exchange_strong(none, next_order(), std::memory_order_seq_cst)) raise_alarm();
}

void Control::find_deaths() const {
  for (int rank = 0; rank < size_; ++rank) {
    const RankPage& there = page(rank);
    const bool owner_died = (there.alive.load(std::memory_order_seq_cst) & FUTEX_OWNER_DIED) != 0;
    if (owner_died && there.dead.load() == 0 && there.gone.load() == 0) note_end(rank);
  }
}

}  // namespace levada::shm
