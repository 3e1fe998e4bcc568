#include "levada/exchange/sample_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/tensor/elements.h"

namespace levada {
namespace {

/// Returns the tensor itself if it is contiguous, otherwise a contiguous copy.
Tensor contiguous(Tensor tensor) {
  return tensor.view().is_contiguous() ? std::move(tensor) : Tensor::copy_of(tensor);
}

Shape with_tokens(std::int64_t tokens, const Shape& trailing) {
  Shape shape{tokens};
  for (const std::int64_t extent : trailing) shape.push_back(extent);
  return shape;
}

/// Returns the key that a tensor of tokens has. `what` names the tensor in error messages.
SampleKey key_of(std::string name, const Tensor& tensor, std::string_view what) {
  if (tensor.shape().rank() == 0) throw InvalidArgument(fmt::format("{} has no dimension for tokens", what));
  if (!tensor.dtype().is_byte_sized()) {
    throw InvalidArgument(fmt::format("{} is {}, whose elements do not begin on bytes; view it as uint8 first", what,
                                      tensor.dtype().name()));
  }
  if (!tensor.view().device().is_cpu()) {
    throw InvalidArgument(fmt::format("{} is not in this machine's memory; copy it to the CPU first", what));
  }
  return {std::move(name), tensor.dtype(), Shape(std::span(tensor.shape().begin() + 1, tensor.shape().end()))};
}

std::uint64_t checked_bytes(const SampleKey& key, std::string_view id, std::int64_t tokens) {
  const auto bytes = key.bytes(tokens);
  if (!bytes) {
    throw InvalidArgument(fmt::format("sample {}, key {}: {} tokens of {} {} do not fit in memory", id, key.name,
                                      tokens, key.dtype.name(), key.trailing.to_string()));
  }
  return *bytes;
}

bool same_bytes(const SampleBytes& a, const SampleBytes& b, std::uint64_t bytes) {
  return bytes == 0 || a.data == b.data || std::memcmp(a.data, b.data, bytes) == 0;
}

bool same_owner(const SampleBytes& a, const SampleBytes& b) {
  return !a.owner.owner_before(b.owner) && !b.owner.owner_before(a.owner);
}

}  // namespace

bool same_values(const PlainValues& a, const PlainValues& b) {
  const auto same = [](const PlainValue& one, const PlainValue& other) {
    if (one.index() != other.index()) return false;
    if (!std::holds_alternative<double>(one)) return one == other;
    return std::bit_cast<std::uint64_t>(std::get<double>(one)) == std::bit_cast<std::uint64_t>(std::get<double>(other));
  };
  return std::ranges::equal(a, b, [&](const auto& one, const auto& other) {
    return one.first == other.first && same(one.second, other.second);
  });
}

std::optional<std::uint64_t> SampleKey::bytes(std::int64_t tokens) const {
  if (tokens < 0) return std::nullopt;
  // Like tensor_bytes(), but without a Shape, because this is called for every sample.
  auto elements = std::optional(static_cast<std::uint64_t>(tokens));
  for (const std::int64_t extent : trailing) {
    if (extent < 0) return std::nullopt;
    elements = checked_mul(*elements, static_cast<std::uint64_t>(extent));
    if (!elements) return std::nullopt;
  }
  const auto bits = checked_mul(*elements, std::uint64_t{dtype.bits} * dtype.lanes);
  if (!bits || *bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return dtype.bytes(*elements);
}

SampleBatch::SampleBatch(std::vector<std::string> ids) : ids_(std::move(ids)) {
  std::unordered_set<std::string_view> seen;
  seen.reserve(ids_.size());
  for (const std::string& id : ids_) {
    if (id.empty()) throw InvalidArgument("a sample's id is empty");
    if (!seen.insert(id).second) throw InvalidArgument(fmt::format("sample {} appears twice among the ids", id));
  }
}

std::size_t SampleBatch::find(std::string_view key) const {
  const auto at = std::ranges::lower_bound(fields_, key, {}, &name_of);
  return at == fields_.end() || name_of(*at) != key ? fields_.size() : static_cast<std::size_t>(at - fields_.begin());
}

const SampleBatch::Field& SampleBatch::field(std::string_view key) const {
  const std::size_t at = find(key);
  if (at == fields_.size()) {
    throw InvalidArgument(fmt::format("the samples have no key {}; their keys are {}", key, fmt::join(keys(), ", ")));
  }
  return fields_[at];
}

std::vector<std::string> SampleBatch::keys() const {
  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.key.name);
  return names;
}

bool SampleBatch::has_key(std::string_view key) const {
  return find(key) != fields_.size();
}
const SampleKey& SampleBatch::key(std::string_view key) const {
  return field(key).key;
}
const Seqlens& SampleBatch::seqlens(std::string_view key) const {
  return field(key).seqlens;
}
bool SampleBatch::has_data(std::string_view key) const {
  return field(key).has_data;
}
bool SampleBatch::has_data() const {
  return std::ranges::all_of(fields_, &Field::has_data);
}

std::uint64_t SampleBatch::byte_count() const {
  std::uint64_t sum = 0;
  for (const Field& field : fields_) {
    for (std::size_t i = 0; i < size(); ++i) sum += field.key.bytes(field.seqlens.total(i)).value_or(0);
  }
  return sum;
}

void SampleBatch::check_size(std::string_view key, const Seqlens& seqlens) const {
  if (key.empty()) throw InvalidArgument("a key is empty");
  if (seqlens.size() == size()) return;
  throw InvalidArgument(
      fmt::format("key {} has lengths for {} samples, but the batch has {}", key, seqlens.size(), size()));
}

void SampleBatch::check_position(std::size_t position) const {
  if (position < size()) return;
  throw InvalidArgument(fmt::format("sample position {} is out of range; the batch has {} samples", position, size()));
}

void SampleBatch::insert(Field field) {
  const auto at = std::ranges::lower_bound(fields_, name_of(field), {}, &name_of);
  if (at != fields_.end() && name_of(*at) == name_of(field)) *at = std::move(field);
  else fields_.insert(at, std::move(field));
}

void SampleBatch::set(std::string name, Tensor packed, Seqlens seqlens) {
  check_size(name, seqlens);
  SampleKey key = key_of(name, packed, fmt::format("key {}", name));
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!__builtin_add_overflow(sum, seqlens.total(i), &sum)) continue;
    throw InvalidArgument(fmt::format("key {}: the lengths up to sample {} do not fit in 63 bits", name, ids_[i]));
  }
  if (sum != packed.shape()[0]) {
    throw InvalidArgument(
        fmt::format("key {} has {} tokens, but its lengths add up to {}", name, packed.shape()[0], sum));
  }
  packed = contiguous(std::move(packed));
  const std::byte* data = packed.view().data();
  std::vector<SampleBytes> items(size());
  for (std::size_t i = 0; i < size(); ++i) {
    if (!seqlens.has(i)) continue;
    items[i] = {data, packed.owner()};
    data += *key.bytes(seqlens.total(i));
  }
  insert({std::move(key), std::move(seqlens), std::move(items), true});
}

void SampleBatch::set(SampleKey key, Seqlens seqlens) {
  check_size(key.name, seqlens);
  if (!key.dtype.is_byte_sized()) {
    throw InvalidArgument(
        fmt::format("key {} is {}, whose elements do not begin on bytes", key.name, key.dtype.name()));
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (!seqlens.has(i)) continue;
    if (key.dtype.bits == 0) {
      throw InvalidArgument(fmt::format("sample {} has key {}, whose dtype is not known", ids_[i], key.name));
    }
    checked_bytes(key, ids_[i], seqlens.total(i));
  }
  insert({std::move(key), std::move(seqlens), {}, false});
}

void SampleBatch::set_items(SampleKey key, std::span<const std::optional<Tensor>> items, Seqlens seqlens) {
  check_size(key.name, seqlens);
  if (items.size() != size()) {
    throw InvalidArgument(fmt::format("key {} has {} tensors for {} samples", key.name, items.size(), size()));
  }
  std::vector<SampleBytes> bytes(size());
  for (std::size_t i = 0; i < size(); ++i) {
    const auto what = fmt::format("sample {}, key {}", ids_[i], key.name);
    if (items[i].has_value() != seqlens.has(i)) {
      throw InvalidArgument(
          fmt::format("{} has only a tensor or only lengths; give both, or neither for an absent key", what));
    }
    if (!items[i]) continue;
    const SampleKey found = key_of(key.name, *items[i], what);
    if (found != key || items[i]->shape()[0] != seqlens.total(i)) {
      throw InvalidArgument(fmt::format("{} is {} {}, not {} {}", what, found.dtype.name(),
                                        items[i]->shape().to_string(), key.dtype.name(),
                                        with_tokens(seqlens.total(i), key.trailing).to_string()));
    }
    const Tensor tensor = contiguous(*items[i]);
    bytes[i] = {tensor.view().data(), tensor.owner()};
  }
  set_bytes(std::move(key), std::move(bytes), std::move(seqlens));
}

void SampleBatch::set_bytes(SampleKey key, std::vector<SampleBytes> items, Seqlens seqlens) {
  check_size(key.name, seqlens);
  insert({std::move(key), std::move(seqlens), std::move(items), true});
}

Tensor SampleBatch::view(const Field& field, const SampleBytes& bytes, std::int64_t tokens) const {
  return Tensor(TensorView(field.key.dtype, with_tokens(tokens, field.key.trailing), bytes.data), bytes.owner);
}

const SampleBytes& SampleBatch::bytes_at(std::string_view key, std::size_t position) const {
  const Field& found = field(key);
  check_position(position);
  if (!found.has_data) {
    throw InvalidArgument(
        fmt::format("sample {}, key {} has no data, because this batch is a meta", ids_[position], key));
  }
  return found.data[position];
}

std::optional<Tensor> SampleBatch::item(std::string_view key, std::size_t position) const {
  const SampleBytes& bytes = bytes_at(key, position);
  const Field& found = field(key);
  if (!found.seqlens.has(position)) return std::nullopt;
  return view(found, bytes, found.seqlens.total(position));
}

Tensor SampleBatch::sequence(std::string_view key, std::size_t position, std::size_t sequence) const {
  const auto whole = item(key, position);
  const auto lengths = field(key).seqlens[position];
  if (!whole || sequence >= lengths.size()) {
    throw InvalidArgument(
        fmt::format("sample {}, key {} has no sequence {}; it has {}", ids_[position], key, sequence, lengths.size()));
  }
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < sequence; ++s) begin += lengths[s];
  return whole->slice(0, begin, begin + lengths[sequence]);
}

Tensor SampleBatch::packed(std::string_view key) const {
  const Field& found = field(key);
  const SampleBytes* first = nullptr;
  const std::byte* next = nullptr;
  bool together = true;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const SampleBytes& bytes = bytes_at(key, i);
    const std::int64_t tokens = found.seqlens.total(i);
    const auto count = found.key.bytes(tokens).value_or(0);
    sum += tokens;
    if (count == 0) continue;
    if (first == nullptr) first = &bytes;
    else together &= bytes.data == next && same_owner(*first, bytes);
    next = bytes.data + count;
  }
  if (first != nullptr && together) return view(found, *first, sum);
  Tensor all = Tensor::empty(found.key.dtype, with_tokens(sum, found.key.trailing));
  std::byte* to = all.mutable_bytes().data();
  for (std::size_t i = 0; i < size(); ++i) {
    const auto count = found.key.bytes(found.seqlens.total(i)).value_or(0);
    if (count > 0) copy_payload(to, found.data[i].data, count);
    to += count;
  }
  return all;
}

const PlainValues& SampleBatch::values(std::size_t position) const {
  static const PlainValues none;
  check_position(position);
  return values_.empty() ? none : values_[position];
}

void SampleBatch::set_values(std::size_t position, PlainValues values) {
  if (same_values(this->values(position), values)) return;
  if (values_.empty()) values_.resize(size());
  values_[position] = std::move(values);
}

SampleBatch SampleBatch::copied(BufferPool& pool) const {
  SampleBatch copy = *this;
  for (Field& field : copy.fields_) {
    const auto size_of = [&](std::size_t i) {
      return field.seqlens.has(i) ? field.key.bytes(field.seqlens.total(i)).value_or(0) : 0;
    };
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < field.data.size(); ++i) bytes += size_of(i);
    if (bytes == 0) continue;
    const BufferPool::Buffer memory = pool.allocate(bytes);
    std::byte* to = memory.data;
    for (std::size_t i = 0; i < field.data.size(); ++i) {
      if (!field.seqlens.has(i)) continue;
      copy_payload(to, field.data[i].data, size_of(i));
      field.data[i] = {to, memory.owner};
      to += size_of(i);
    }
  }
  return copy;
}

SampleBatch SampleBatch::meta() const {
  SampleBatch meta = *this;
  for (Field& field : meta.fields_) {
    field.data.clear();
    field.has_data = false;
  }
  return meta;
}

bool SampleBatch::operator==(const SampleBatch& other) const {
  if (ids_ != other.ids_ || fields_.size() != other.fields_.size()) return false;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!same_values(values(i), other.values(i))) return false;
  }
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const Field& a = fields_[f];
    const Field& b = other.fields_[f];
    if (a.key != b.key || a.seqlens != b.seqlens || a.has_data != b.has_data) return false;
    for (std::size_t i = 0; i < a.data.size(); ++i) {
      if (!same_bytes(a.data[i], b.data[i], a.key.bytes(a.seqlens.total(i)).value_or(0))) return false;
    }
  }
  return true;
}

}  // namespace levada
