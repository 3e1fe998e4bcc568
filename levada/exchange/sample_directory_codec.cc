// The encoding of a directory: header, keys, holder sets, ids, then key by key the samples' sets and lengths, then the
// plain values. All integers are little-endian.
#include "levada/exchange/sample_directory_codec.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/exchange/sample_directory_state.h"
#include "levada/tensor/codec.h"

namespace levada {
namespace {

constexpr std::uint32_t magic = 0x5749564c;  // "LVIW"
constexpr std::uint32_t version = 3;

/// Reads text. Fails for bytes that are not UTF-8, because all texts come from Python strings.
std::string_view get_text(ByteReader& reader, std::string_view what) {
  const std::string_view text = as_text(reader.get_sized());
  if (!simdjson::validate_utf8(text)) reader.fail(fmt::format("{} that is not UTF-8", what));
  return text;
}

enum class ValueTag : std::uint8_t { none = 0, boolean = 1, integer = 2, real = 3, text = 4, message = 5 };

void put_value(ByteWriter& writer, const PlainValue& value) {
  writer.put(static_cast<std::uint8_t>(value.index()));
  if (const auto* boolean = std::get_if<bool>(&value)) writer.put(static_cast<std::uint8_t>(*boolean));
  if (const auto* integer = std::get_if<std::int64_t>(&value)) writer.put(*integer);
  if (const auto* real = std::get_if<double>(&value)) writer.put(*real);
  if (const auto* text = std::get_if<std::string>(&value)) writer.put_sized(std::string_view(*text));
  if (const auto* message = std::get_if<Bytes>(&value)) writer.put_sized(ByteView(*message));
}

PlainValue get_value(ByteReader& reader) {
  const auto tag = reader.get<std::uint8_t>();
  switch (static_cast<ValueTag>(tag)) {
    case ValueTag::none: return None{};
    case ValueTag::boolean: {
      const auto value = reader.get<std::uint8_t>();
      if (value > 1) reader.fail("a boolean that is neither true nor false");
      return value == 1;
    }
    case ValueTag::integer: return reader.get<std::int64_t>();
    case ValueTag::real: return reader.get<double>();
    case ValueTag::text: return std::string(get_text(reader, "a value"));
    case ValueTag::message: return reader.get_bytes();
  }
  reader.fail(fmt::format("no such kind of value as {}", tag));
}

}  // namespace

void put_key(ByteWriter& writer, const SampleKey& key) {
  writer.put_sized(key.name);
  put_dtype(writer, key.dtype);
  put_shape(writer, key.trailing);
}

SampleKey get_key(ByteReader& reader) {
  SampleKey key{.name = std::string(get_text(reader, "a key"))};
  key.dtype = get_dtype(reader);
  key.trailing = get_shape(reader, Shape::max_rank - 1);
  if (key.name.empty()) reader.fail("a key without a name");
  if (!key.dtype.is_byte_sized()) reader.fail("a key with elements smaller than a byte");
  if (!key.bytes(1)) reader.fail("a trailing shape that does not fit in memory");
  return key;
}

std::int64_t max_tokens(const SampleKey& key) {
  const std::uint64_t token = key.bytes(1).value_or(0);
  return token == 0 ? INT64_MAX : static_cast<std::int64_t>(INT64_MAX / 8 / token);  // as in SampleKey::bytes()
}

void put_part(ByteWriter& writer, const SequencePart& part) {
  writer.put(part.index);
  writer.put(part.count);
  writer.put(static_cast<std::uint8_t>(part.zigzag));
}

SequencePart get_part(ByteReader& reader) {
  SequencePart part{reader.get<std::uint16_t>(), reader.get<std::uint16_t>()};
  const auto zigzag = reader.get<std::uint8_t>();
  part.zigzag = zigzag == 1;
  if (zigzag > 1 || part.index >= part.count || (part.is_whole() && part.zigzag)) reader.fail("an invalid part");
  return part;
}

void put_values(ByteWriter& writer, const PlainValues& values) {
  writer.put(static_cast<std::uint32_t>(values.size()));
  for (const auto& [name, value] : values) {
    writer.put_sized(std::string_view(name));
    put_value(writer, value);
  }
}

PlainValues get_values(ByteReader& reader) {
  PlainValues values;
  for (auto count = reader.get_count(5); count > 0; --count) {
    std::string name(get_text(reader, "the name of a value"));
    if (!values.try_emplace(std::move(name), get_value(reader)).second) reader.fail("two values with the same name");
  }
  return values;
}

void put_lengths(ByteWriter& writer, std::span<const std::uint32_t> counts, std::span<const std::int64_t> lengths) {
  const bool is_single = std::ranges::all_of(counts, [](std::uint32_t count) { return count == 1; });
  put_numbers(writer, is_single ? std::span<const std::uint32_t>() : counts);
  put_numbers(writer, lengths);
}

Seqlens get_lengths(ByteReader& reader) {
  std::vector<std::uint32_t> counts;
  std::vector<std::int64_t> lengths;
  get_numbers(reader, counts);
  get_numbers(reader, lengths);
  try {
    if (counts.empty()) return Seqlens::one_each(std::move(lengths));
    Seqlens lists;
    auto left = std::span<const std::int64_t>(lengths);
    for (const std::uint32_t count : counts) {
      if (count > left.size()) reader.fail("fewer lengths than announced");
      lists.push_back(left.first(count));
      left = left.subspan(count);
    }
    if (!left.empty()) reader.fail("more lengths than announced");
    return lists;
  } catch (const InvalidArgument& error) {
    reader.fail(error.what());
  }
}

namespace {

Holders get_holders(ByteReader& reader) {
  Holders holders(reader.get_count(9));
  for (std::size_t i = 0; i < holders.size(); ++i) {
    Holder& holder = holders[i];
    holder.rank = reader.get<std::int32_t>();
    holder.part = get_part(reader);
    const bool in_order = holder.rank >= 0 && holder.rank < max_ranks && (i == 0 || holders[i - 1].rank < holder.rank);
    if (!in_order) reader.fail("holders out of order or out of range");
  }
  return holders;
}

}  // namespace

Bytes SampleDirectory::encode() const {
  const State& state = *state_;
  ByteWriter writer;
  writer.put(magic);
  writer.put(version);
  writer.put(static_cast<std::uint32_t>(keys().size()));
  for (const SampleKey& key : keys()) put_key(writer, key);
  std::vector<std::uint32_t> numbers(state.set_count(), 0);  // only sets in use are sent
  std::vector<std::uint32_t> used;
  for (std::size_t key = 0; key < keys().size(); ++key) {
    for (std::size_t sample = 0; sample < size(); ++sample) {
      const std::uint32_t set = holder_set(sample, key);
      if (set == 0 || numbers[set] != 0) continue;
      used.push_back(set);
      numbers[set] = static_cast<std::uint32_t>(used.size());
    }
  }
  writer.put(static_cast<std::uint32_t>(used.size()));
  for (const std::uint32_t set : used) {
    const Holders& holders = holder_set_at(set);
    writer.put(static_cast<std::uint32_t>(holders.size()));
    for (const Holder& holder : holders) {
      writer.put(std::int32_t{holder.rank});
      put_part(writer, holder.part);
    }
  }
  writer.put(static_cast<std::uint32_t>(size()));
  for (std::size_t sample = 0; sample < size(); ++sample) writer.put_sized(id(sample));
  for (std::size_t key = 0; key < keys().size(); ++key) {
    std::vector<std::uint32_t> sets, counts;
    std::vector<std::int64_t> all_lengths;
    for (std::size_t sample = 0; sample < size(); ++sample) {
      const std::uint32_t set = holder_set(sample, key);
      sets.push_back(numbers[set]);
      if (set == 0) continue;
      const auto own = lengths(sample, key);
      counts.push_back(static_cast<std::uint32_t>(own.size()));
      all_lengths.insert(all_lengths.end(), own.begin(), own.end());
    }
    put_numbers(writer, sets);
    put_lengths(writer, counts, all_lengths);
  }
  std::uint32_t with_values = 0;
  for (std::size_t sample = 0; sample < size(); ++sample) with_values += values(sample).empty() ? 0 : 1;
  writer.put(with_values);
  for (std::size_t sample = 0; sample < size(); ++sample) {
    if (values(sample).empty()) continue;
    writer.put(static_cast<std::uint32_t>(sample));
    put_values(writer, values(sample));
  }
  return std::move(writer).take();
}

SampleDirectory SampleDirectory::decode(ByteView bytes) {
  ByteReader reader(bytes);
  if (reader.get<std::uint32_t>() != magic) reader.fail("these bytes are not a directory");
  if (reader.get<std::uint32_t>() != version) reader.fail("a directory of another version");
  SampleDirectory directory;
  State& state = *directory.state_;
  auto keys = reader.get_count(9);
  if (keys > State::max_keys) reader.fail(fmt::format("{} keys", keys));
  for (; keys > 0; --keys) {
    const SampleKey key = get_key(reader);
    if (state.find_key(key.name)) reader.fail(fmt::format("key {:.60} appears twice", key.name));
    state.find_or_add_key(key);
  }
  std::vector<std::uint32_t> sets{0};
  for (auto count = reader.get_count(4); count > 0; --count) sets.push_back(state.intern(get_holders(reader)));
  const auto samples = reader.get_count(4 + 4 * state.keys().size());
  state.reserve(samples);
  for (std::uint32_t sample = 0; sample < samples; ++sample) {
    const std::string_view id = get_text(reader, "an id");
    if (id.empty() || id.size() >= (std::size_t{1} << 24)) reader.fail("an id that is empty or too long");
    if (state.find_or_add(id, hash64(as_bytes(id))) != sample)
      reader.fail(fmt::format("sample {:.60} appears twice", id));
  }
  std::vector<std::uint32_t> set_of;  // by sample
  for (std::size_t key = 0; key < state.keys().size(); ++key) {
    get_numbers(reader, set_of);
    if (set_of.size() != samples) reader.fail("a wrong number of samples");
    const Seqlens lengths = get_lengths(reader);
    const std::int64_t max_length = max_tokens(state.keys()[key]);
    std::size_t next = 0;
    for (std::uint32_t sample = 0; sample < samples; ++sample) {
      if (set_of[sample] >= sets.size()) reader.fail("holders that were not listed");
      if (sets[set_of[sample]] == 0) continue;
      if (next == lengths.size()) reader.fail("fewer lengths than samples");
      if (lengths.total(next) > max_length) reader.fail("lengths that do not fit in memory");
      state.put(sample, key, sets[set_of[sample]], lengths[next++]);
    }
    if (next != lengths.size()) reader.fail("more lengths than samples");
  }
  for (std::uint32_t sample = 0; sample < samples; ++sample) {
    if (!state.is_held(sample)) reader.fail(fmt::format("no rank holds sample {:.60}", state.id(sample)));
  }
  for (auto count = reader.get_count(8); count > 0; --count) {
    const auto sample = reader.get<std::uint32_t>();
    if (sample >= samples || !state.values(sample).empty())
      reader.fail("values of an unknown sample, or a second time of one");
    state.put_values(sample, get_values(reader));
  }
  reader.expect_end();
  return directory;
}

}  // namespace levada
