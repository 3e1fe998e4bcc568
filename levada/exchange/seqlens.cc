#include "levada/exchange/seqlens.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/error.h"

namespace levada {
namespace {

void check_lengths(std::size_t item, std::span<const std::int64_t> lengths) {
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) {
    if (length < 0) throw InvalidArgument(fmt::format("item {} has a sequence of {} tokens", item, length));
    if (__builtin_add_overflow(total, length, &total)) {
      throw InvalidArgument(fmt::format("the sequences of item {} together are longer than 2^63 tokens", item));
    }
  }
}

}  // namespace

Seqlens Seqlens::one_each(std::vector<std::int64_t> lengths) {
  for (std::size_t item = 0; item < lengths.size(); ++item) check_lengths(item, std::span(lengths).subspan(item, 1));
  Seqlens seqlens;
  seqlens.lengths_ = std::move(lengths);
  return seqlens;
}

Seqlens Seqlens::of(const std::vector<std::optional<std::vector<std::int64_t>>>& items) {
  Seqlens seqlens;
  for (const auto& item : items) {
    if (item) seqlens.push_back(*item);
    else seqlens.push_absent();
  }
  return seqlens;
}

std::int64_t Seqlens::total(std::size_t item) const {
  const auto lengths = (*this)[item];
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

void Seqlens::push_back(std::span<const std::int64_t> lengths) {
  check_lengths(size(), lengths);
  if (lengths.size() != 1) spell_out();
  const bool spelled = !ends_.empty() || (lengths_.empty() && lengths.size() != 1);
  lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  if (spelled) ends_.push_back(lengths_.size());
  if (!absent_.empty()) absent_.push_back(false);
}

void Seqlens::push_absent() {
  const std::size_t before = size();
  spell_out();
  if (absent_.empty()) absent_.assign(before, false);
  ends_.push_back(lengths_.size());
  absent_.push_back(true);
}

void Seqlens::spell_out() {
  if (!ends_.empty()) return;
  ends_.resize(lengths_.size());
  std::iota(ends_.begin(), ends_.end(), std::size_t{1});
}

bool Seqlens::operator==(const Seqlens& other) const {
  if (size() != other.size()) return false;
  for (std::size_t item = 0; item < size(); ++item) {
    if (has(item) != other.has(item) || !std::ranges::equal((*this)[item], other[item])) return false;
  }
  return true;
}

}  // namespace levada
