#include "levada/exchange/id_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::size_t max_id_size = (std::size_t{1} << 24) - 1;
constexpr std::size_t max_text = (std::size_t{1} << 40) - 1;
constexpr std::size_t max_ids = UINT32_MAX - 1;
/// Minimum dead text before compaction, in bytes.
constexpr std::uint64_t compact_bytes = std::uint64_t{64} << 10;

}  // namespace

std::optional<std::size_t> IdTable::find(std::string_view id, std::uint64_t hash) const {
  if (slots_.empty()) return std::nullopt;
  const std::uint32_t number = slots_[slot_for(id, hash)];
  return number == 0 ? std::nullopt : std::optional<std::size_t>(number - 1);
}

void IdTable::find_all(std::span<const std::string> ids, std::vector<std::uint32_t>& numbers) const {
  constexpr std::size_t ahead = 8;  // ids between the prefetches of slot, entry and text, and the comparison
  if (slots_.empty()) return numbers.resize(numbers.size() + ids.size(), none);
  std::array<std::uint64_t, 4 * ahead> hashes{};
  const auto first_slot = [&](std::size_t i) { return hashes[i % hashes.size()] & (slots_.size() - 1); };
  for (std::size_t next = 0; next < ids.size() + 3 * ahead; ++next) {
    if (next < ids.size()) {
      hashes[next % hashes.size()] = hash64(as_bytes(ids[next]));
      __builtin_prefetch(&slots_[first_slot(next)]);
    }
    if (const std::size_t i = next - ahead; next >= ahead && i < ids.size()) {
      if (const std::uint32_t number = slots_[first_slot(i)]; number != 0) __builtin_prefetch(&entries_[number - 1]);
    }
    if (const std::size_t i = next - 2 * ahead; next >= 2 * ahead && i < ids.size()) {
      if (const std::uint32_t number = slots_[first_slot(i)]; number != 0) {
        __builtin_prefetch(text_.data() + entries_[number - 1].begin);
      }
    }
    if (next < 3 * ahead) continue;
    const std::size_t i = next - 3 * ahead;
    const std::uint32_t number = slots_[slot_for(ids[i], hashes[i % hashes.size()])];
    numbers.push_back(number == 0 ? none : number - 1);
  }
}

std::size_t IdTable::slot_for(std::string_view id, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const std::size_t number = slots_[slot] - 1;
    if (entries_[number].hash == hash && (*this)[number] == id) break;
  }
  return slot;
}

void IdTable::check_id(std::string_view id) {
  if (!id.empty() && id.size() <= max_id_size) return;
  throw InvalidArgument(
      fmt::format("a sample's id must have 1 byte to 16 MiB, but the id that begins with \"{}\" has {}",
                  cut_text(id, 60), format_bytes(id.size())));
}

std::size_t IdTable::insert(std::string_view id, std::uint64_t hash) {
  grow_for_one_more();
  return insert_at(free_slot(hash), id, hash);
}

IdTable::FindResult IdTable::find_or_insert(std::string_view id, std::uint64_t hash) {
  grow_for_one_more();
  const std::size_t slot = slot_for(id, hash);
  if (slots_[slot] != 0) return {slots_[slot] - 1, false};
  return {insert_at(slot, id, hash), true};
}

void IdTable::grow_for_one_more() {
  if (2 * (entries_.size() + 1) > slots_.size()) grow_slots(2 * (entries_.size() + 1));
}

std::size_t IdTable::insert_at(std::size_t slot, std::string_view id, std::uint64_t hash) {
  check_id(id);
  if (entries_.size() >= max_ids || text_.size() > max_text - id.size()) {
    throw InvalidArgument("at most 2^32 samples and 1 TiB of ids are supported");
  }
  Entry entry;
  entry.hash = hash;
  entry.begin = text_.size() & max_text;
  entry.length = id.size() & max_id_size;
  text_ += id;
  entries_.push_back(entry);
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
  return entries_.size() - 1;
}

void IdTable::erase(std::size_t number) {
  const std::size_t last = entries_.size() - 1;
  stale_text_ += entries_[number].length;
  erase_slot(slot_of(number));
  if (number != last) slots_[slot_of(last)] = static_cast<std::uint32_t>(number + 1);
  entries_[number] = entries_[last];
  entries_.pop_back();
}

void IdTable::reserve(std::size_t ids) {
  entries_.reserve(ids);
  if (ids > slots_.size() / 2) grow_slots(ids);
}

bool IdTable::needs_compaction() const {
  return stale_text_ > compact_bytes && stale_text_ > text_.size() / 2;
}

void IdTable::compact() {
  if (!needs_compaction()) return;
  std::string text;
  try {
    text.reserve(text_.size() - stale_text_);
  } catch (const std::bad_alloc&) {
    return;  // a later call tries again
  }
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    const std::string_view kept = (*this)[number];
    entries_[number].begin = text.size() & max_text;
    text += kept;
  }
  text_ = std::move(text);
  stale_text_ = 0;
}

std::size_t IdTable::free_slot(std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  return slot;
}

std::size_t IdTable::slot_of(std::size_t number) const {
  std::size_t slot = entries_[number].hash & (slots_.size() - 1);
  while (slots_[slot] != number + 1) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

/// Closes the gap, so that no probe sequence contains an empty slot.
void IdTable::erase_slot(std::size_t slot) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t next = (slot + 1) & mask; slots_[next] != 0; next = (next + 1) & mask) {
    const std::size_t home = entries_[slots_[next] - 1].hash & mask;
    if (((next - home) & mask) < ((next - slot) & mask)) continue;
    slots_[slot] = slots_[next];
    slot = next;
  }
  slots_[slot] = 0;
}

void IdTable::grow_slots(std::size_t ids) {
  slots_.assign(std::bit_ceil(std::max<std::size_t>(16, 2 * ids)), 0);
  for (std::size_t number = 0; number < entries_.size(); ++number) {
    slots_[free_slot(entries_[number].hash)] = static_cast<std::uint32_t>(number + 1);
  }
}

void IdPrefix::see(std::string_view id) {
  if (common_ == SIZE_MAX) {
    first_ = id;
    common_ = id.size();
  }
  common_ = std::min(common_, id.size());
  while (std::memcmp(id.data(), first_.data(), common_) != 0) --common_;
}

std::uint64_t IdPrefix::of(std::string_view id) const {
  id.remove_prefix(std::min(common_, id.size()));
  std::uint64_t prefix = 0;
  if (id.size() >= sizeof(prefix) && std::endian::native == std::endian::little) {
    std::memcpy(&prefix, id.data(), sizeof(prefix));  // not payload: an id
    return __builtin_bswap64(prefix);
  }
  for (std::size_t i = 0; i < sizeof(prefix); ++i) {
    prefix = prefix << 8 | (i < id.size() ? static_cast<unsigned char>(id[i]) : 0);
  }
  return prefix;
}

}  // namespace levada
