#include "levada/corpus/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::uint32_t whole_flag = std::uint32_t{1} << 31;

/// The remainders of a window's documents, and the bins that they share.
struct PackedWindow {
  std::vector<std::uint32_t> documents;  ///< documents of the remainders, ascending
  std::vector<std::int64_t> lengths;     ///< lengths of the remainders, rounded up
  BinPacking packing;
  std::vector<std::uint32_t> members;  ///< documents, bin by bin, ascending in each
  std::vector<std::size_t> begins;     ///< start of each bin's members, and the end
  std::vector<std::int64_t> filled;    ///< positions used in each bin

  void pack(std::int64_t capacity, std::int64_t max_pieces) {
    packing = pack_best_fit(lengths, capacity, max_pieces);
    begins.assign(packing.bins + 1, 0);
    filled.assign(packing.bins, 0);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      ++begins[packing.bin_of[i] + 1];
      filled[packing.bin_of[i]] += lengths[i];
    }
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    members.resize(documents.size());
    auto next = begins;
    for (std::size_t i = 0; i < documents.size(); ++i) members[next[packing.bin_of[i]]++] = documents[i];
  }
  std::span<const std::uint32_t> members_of(std::uint32_t bin) const {
    return std::span(members).subspan(begins[bin], begins[bin + 1] - begins[bin]);
  }
};

}  // namespace

Packing parse_packing(std::string_view word) {
  if (word == "cut") return Packing::cut;
  if (word == "best-fit") return Packing::best_fit;
  if (word == "documents") return Packing::documents;
  throw InvalidArgument(fmt::format("packing must be cut, best-fit or documents, got {}", printable(word)));
}

BinPacking pack_best_fit(std::span<const std::int64_t> sizes, std::int64_t capacity, std::int64_t max_items) {
  std::vector<std::uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::uint32_t item) { return sizes[item]; });
  BinPacking packing{.bin_of = std::vector<std::uint32_t>(sizes.size())};
  std::set<std::pair<std::int64_t, std::uint32_t>> open;  // the remaining room, and the bin
  std::vector<std::int64_t> counts;                       // number of items in each bin
  for (const auto item : order) {
    const auto size = sizes[item];
    auto best = open.lower_bound({size, 0});
    const bool is_new = best == open.end();
    auto [room, bin] = is_new ? std::pair(capacity, packing.bins++) : *best;
    if (is_new) counts.push_back(0);
    else open.erase(best);
    if (room > size && ++counts[bin] < max_items) open.emplace(room - size, bin);
    packing.bin_of[item] = bin;
  }
  return packing;
}

PackedOrder::PackedOrder(std::int64_t documents, std::function<std::int64_t(std::int64_t)> tokens_of,
                         std::int64_t sequence, std::int64_t pad_to, std::int64_t max_pieces,
                         const std::function<MemoryLimits()>& limits)
    : tokens_of_(std::move(tokens_of)), sequence_(sequence), pad_to_(pad_to), max_pieces_(max_pieces) {
  if (documents >= whole_flag) {
    throw InvalidArgument(fmt::format("one source cannot pack as many as {} documents: divide it", documents));
  }
  reserve(documents, limits);
  for (std::int64_t first = 0; first < documents; first += window) {
    add_window(first, std::min(first + window, documents));
  }
}

/// Allocates all memory at once, since growing would temporarily take up to three times as much.
void PackedOrder::reserve(std::int64_t documents, const std::function<MemoryLimits()>& limits) {
  constexpr std::uint64_t small = std::uint64_t{1} << 20;  // reading the limits takes up to a millisecond
  std::int64_t wholes = 0, rests = 0, rest_positions = 0;
  for (std::int64_t document = 0; document < documents; ++document) {
    const auto positions = positions_of(document);
    wholes += positions / sequence_;
    rests += positions % sequence_ > 0 ? 1 : 0;
    rest_positions += rounded(positions % sequence_);
  }
  if (wholes >= whole_flag) {
    throw InvalidArgument("a source has more samples than can be packed: divide it, or use longer sequences");
  }
  // For any two bins with room for more pieces, the content of one would not have fitted into the other.
  const auto windows = documents / window + 1;
  const auto bins = std::min(rests, 2 * rest_positions / sequence_ + rests / max_pieces_ + windows);
  const auto samples = static_cast<std::size_t>(wholes + bins), members = static_cast<std::size_t>(wholes + rests);
  const auto bytes = members * sizeof(members_.front()) + (samples + 1) * sizeof(begins_.front()) +
                     static_cast<std::size_t>(wholes) * sizeof(whole_samples_.front());
  if (bytes >= small) {
    expect_memory(bytes, limits(), fmt::format("the order of {} packed documents", documents),
                  ", or cut documents instead of packing them");
  }
  members_.reserve(members);
  begins_.reserve(samples + 1);
  whole_samples_.reserve(static_cast<std::size_t>(wholes));
}

void PackedOrder::add_window(std::int64_t first, std::int64_t end) {
  PackedWindow rests;
  for (auto document = first; document < end; ++document) {
    const auto positions = positions_of(document);
    positions_ += positions;
    if (positions % sequence_ == 0) continue;
    rests.documents.push_back(static_cast<std::uint32_t>(document));
    rests.lengths.push_back(rounded(positions % sequence_));
  }
  rests.pack(sequence_, max_pieces_);
  for (std::size_t document = static_cast<std::size_t>(first), rest = 0; document < static_cast<std::size_t>(end);
       ++document) {
    const auto whole = positions_of(static_cast<std::int64_t>(document)) / sequence_;
    for (std::int64_t number = 0; number < whole; ++number) {
      const auto member = whole_flag | static_cast<std::uint32_t>(whole_samples_.size());
      whole_samples_.push_back({static_cast<std::uint32_t>(document), static_cast<std::uint32_t>(number)});
      add_sample({&member, 1}, sequence_);
    }
    if (rest == rests.documents.size() || rests.documents[rest] != document) continue;
    const auto bin = rests.packing.bin_of[rest++];
    const auto members = rests.members_of(bin);
    if (members.front() == document) add_sample(members, rests.filled[bin]);
  }
}

void PackedOrder::add_sample(std::span<const std::uint32_t> members, std::int64_t length) {
  members_.insert(members_.end(), members.begin(), members.end());
  begins_.push_back(static_cast<std::int64_t>(members_.size()));
  const auto segments = static_cast<std::int64_t>(members.size()) + (length < sequence_ ? 1 : 0);
  max_segments_ = std::max(max_segments_, segments);
}

PackedPiece PackedOrder::piece(std::int64_t sample, std::int64_t number) const {
  const auto member = members_[static_cast<std::size_t>(begin(sample) + number)];
  if ((member & whole_flag) != 0) {
    const auto& whole = whole_samples_[member & ~whole_flag];
    return {whole.document, whole.number * sequence_, sequence_};
  }
  const auto positions = positions_of(member);
  return {member, positions / sequence_ * sequence_, positions % sequence_};
}

}  // namespace levada
