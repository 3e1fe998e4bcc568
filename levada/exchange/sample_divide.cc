// Gathers, splits and selects batches. The results share the tensors' memory.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "levada/base/error.h"
#include "levada/exchange/sample_batch.h"

namespace levada {
namespace {

void check_order(std::span<const std::size_t> order, std::size_t size) {
  std::vector<bool> seen(size);
  for (const std::size_t position : order) {
    if (position >= size)
      throw InvalidArgument(fmt::format("an order of {} samples has the invalid position {}", size, position));
    if (seen[position]) throw InvalidArgument(fmt::format("position {} appears twice in the order", position));
    seen[position] = true;
  }
  if (order.size() != size) {
    throw InvalidArgument(fmt::format("an order lists {} positions for {} samples", order.size(), size));
  }
}

}  // namespace

void SampleBatch::append(Field& to, const Field& from, std::size_t position) {
  if (from.seqlens.has(position)) to.seqlens.push_back(from.seqlens[position]);
  else to.seqlens.push_absent();
  if (to.has_data) to.data.push_back(from.data[position]);
}

SampleBatch SampleBatch::gather(std::span<const SampleBatch> batches) {
  std::vector<std::string> ids;
  std::map<std::string, Field> fields;
  for (const SampleBatch& batch : batches) {
    ids.insert(ids.end(), batch.ids_.begin(), batch.ids_.end());
    for (const Field& field : batch.fields_) {
      auto& known = fields.try_emplace(field.key.name, Field{.key = {field.key.name, {}, {}}}).first->second;
      if (field.key.dtype.bits == 0) continue;
      if (known.key.dtype.bits == 0) {
        known.key = field.key;
        known.has_data = field.has_data;
      }
      if (known.key == field.key && known.has_data == field.has_data) continue;
      throw InvalidArgument(fmt::format("key {} is {} {}{} in one batch and {} {}{} in that of sample {}",
                                        field.key.name, known.key.dtype.name(), known.key.trailing.to_string(),
                                        known.has_data ? "" : " without data", field.key.dtype.name(),
                                        field.key.trailing.to_string(), field.has_data ? "" : " without data",
                                        batch.ids_.empty() ? "" : batch.ids_[0]));
    }
  }
  SampleBatch all(std::move(ids));
  for (auto& each : fields) {
    const std::string& name = each.first;
    Field& field = each.second;
    if (field.key.dtype.bits == 0) {  // absent from all batches: has data if they have
      field.has_data =
          std::ranges::all_of(batches, [&](const auto& b) { return !b.has_key(name) || b.has_data(name); });
    }
    for (const SampleBatch& batch : batches) {
      const std::size_t at = batch.find(name);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (at != batch.fields_.size() && batch.fields_[at].seqlens.has(i)) {
          append(field, batch.fields_[at], i);
        } else {
          field.seqlens.push_absent();
          if (field.has_data) field.data.emplace_back();
        }
      }
    }
    all.fields_.push_back(std::move(field));
  }
  std::size_t position = 0;
  for (const SampleBatch& batch : batches) {
    for (std::size_t i = 0; i < batch.size(); ++i) all.set_values(position++, batch.values(i));
  }
  return all;
}

SampleBatch SampleBatch::at(std::span<const std::size_t> positions) const {
  std::vector<std::string> ids;
  ids.reserve(positions.size());
  for (const std::size_t position : positions) {
    check_position(position);
    ids.push_back(ids_[position]);
  }
  SampleBatch part(std::move(ids));
  for (const Field& field : fields_) {
    Field chosen{.key = field.key, .has_data = field.has_data};
    chosen.seqlens.reserve(positions.size());
    chosen.data.reserve(field.has_data ? positions.size() : 0);
    for (const std::size_t position : positions) append(chosen, field, position);
    part.fields_.push_back(std::move(chosen));
  }
  if (!values_.empty()) {
    for (std::size_t i = 0; i < positions.size(); ++i) part.set_values(i, values_[positions[i]]);
  }
  return part;
}

std::vector<SampleBatch> SampleBatch::split(std::span<const std::size_t> counts) const {
  Partition partition;
  std::size_t next = 0;
  for (const std::size_t count : counts) {
    if (count > size() - next) break;
    auto& part = partition.emplace_back(count);
    std::iota(part.begin(), part.end(), next);
    next += count;
  }
  if (partition.size() != counts.size() || next != size()) {
    throw InvalidArgument(fmt::format("the counts of a split must add up to the {} samples of the batch", size()));
  }
  return split(partition);
}

std::vector<SampleBatch> SampleBatch::split(const Partition& partition) const {
  std::vector<std::size_t> order;
  for (const auto& part : partition) order.insert(order.end(), part.begin(), part.end());
  check_order(order, size());
  std::vector<SampleBatch> parts;
  for (const auto& part : partition) parts.push_back(at(part));
  return parts;
}

Partition SampleBatch::balanced(std::size_t parts, std::string_view key, PartSizes sizes,
                                const SampleCost& cost) const {
  if (cost.kind == SampleCost::Kind::weights) {
    throw InvalidArgument("a batch has no weights to balance by; the cost must be tokens or flops");
  }
  if (!key.empty()) static_cast<void>(field(key));
  if (size() < parts) {
    throw InvalidArgument(fmt::format(
        "a batch of {} sample(s) cannot be divided over {} ranks; give at least one sample for each", size(), parts));
  }
  std::vector<std::int64_t> works;
  for (std::size_t i = 0; i < size(); ++i) {
    SampleSize sample;
    for (const Field& field : fields_) {
      if (!key.empty() && field.key.name != key) continue;
      for (const std::int64_t length : field.seqlens[i]) {
        std::int64_t square = 0;
        if (!__builtin_add_overflow(sample.tokens, length, &sample.tokens) &&
            (cost.kind == SampleCost::Kind::tokens ||
             (!__builtin_mul_overflow(length, length, &square) &&
              !__builtin_add_overflow(sample.squares, square, &sample.squares)))) {
          continue;
        }
        throw InvalidArgument(
            fmt::format("sample {}, key {}: its work does not fit in 63 bits", ids_[i], field.key.name));
      }
    }
    works.push_back(cost.of(sample).first);
  }
  return partition_by_cost(works, parts, sizes);
}

std::vector<SampleBatch> SampleBatch::unpack() const {
  return split(std::vector<std::size_t>(size(), 1));
}

SampleBatch SampleBatch::reorder(std::span<const std::size_t> order) const {
  check_order(order, size());
  return at(order);
}

SampleBatch SampleBatch::select_ids(std::span<const std::string> ids) const {
  std::unordered_map<std::string_view, std::size_t> position_of;
  position_of.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) position_of.emplace(ids_[i], i);
  std::vector<std::size_t> positions;
  positions.reserve(ids.size());
  for (const std::string& id : ids) {
    const auto found = position_of.find(id);
    if (found == position_of.end()) throw InvalidArgument(fmt::format("there is no sample {} in this batch", id));
    positions.push_back(found->second);
  }
  return at(positions);
}

SampleBatch SampleBatch::select_keys(std::span<const std::string> keys) const {
  SampleBatch chosen;
  chosen.ids_ = ids_;
  chosen.values_ = values_;
  for (const std::string& key : keys) chosen.insert(field(key));
  return chosen;
}

SampleBatch SampleBatch::rename_keys(const std::map<std::string, std::string>& names) const {
  for (const auto& [from, to] : names) {
    static_cast<void>(field(from));
    if (to.empty()) throw InvalidArgument(fmt::format("key {} would have an empty name", from));
  }
  SampleBatch renamed;
  renamed.ids_ = ids_;
  renamed.values_ = values_;
  for (Field field : fields_) {
    const auto found = names.find(field.key.name);
    if (found != names.end()) field.key.name = found->second;
    if (renamed.has_key(field.key.name)) {
      throw InvalidArgument(fmt::format("two keys would be named {}", field.key.name));
    }
    renamed.insert(std::move(field));
  }
  return renamed;
}

void SampleBatch::update(const SampleBatch& other) {
  if (other.size() != size()) {
    throw InvalidArgument(fmt::format("cannot update {} samples from {}", size(), other.size()));
  }
  const SampleBatch aligned = other.ids_ == ids_ ? other : other.select_ids(ids_);
  for (const Field& field : aligned.fields_) insert(field);
  for (std::size_t i = 0; i < size() && !aligned.values_.empty(); ++i) {
    PlainValues merged = aligned.values_[i];
    merged.insert(values(i).begin(), values(i).end());
    set_values(i, std::move(merged));
  }
}

}  // namespace levada
