// Encodes parts of a directory, little-endian. Readers throw CorruptMessage. Private to this module.
#pragma once

#include <cstring>
#include <ranges>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/exchange/sample_directory.h"

namespace levada {

void put_key(ByteWriter& writer, const SampleKey& key);
SampleKey get_key(ByteReader& reader);
/// Returns the maximum tokens of a key that fit in memory.
std::int64_t max_tokens(const SampleKey& key);

void put_part(ByteWriter& writer, const SequencePart& part);
SequencePart get_part(ByteReader& reader);

void put_values(ByteWriter& writer, const PlainValues& values);
PlainValues get_values(ByteReader& reader);

/// Writes numbers of one type, prefixed by their size in bytes.
template <std::ranges::contiguous_range Numbers>
void put_numbers(ByteWriter& writer, const Numbers& numbers) {
  writer.put_sized(std::as_bytes(std::span(numbers)));
}
template <typename T>
void get_numbers(ByteReader& reader, std::vector<T>& numbers) {
  const ByteView bytes = reader.get_sized();
  if (bytes.size() % sizeof(T) != 0) reader.fail("numbers that are cut off");
  numbers.resize(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());  // not payload: numbers
}

/// Writes lists of sequences' lengths: the count of each list, unless all have one, then all lengths.
void put_lengths(ByteWriter& writer, std::span<const std::uint32_t> counts, std::span<const std::int64_t> lengths);
/// Reads such lists. No length is negative, and the lengths of a list add up to less than 2^63.
Seqlens get_lengths(ByteReader& reader);

}  // namespace levada
