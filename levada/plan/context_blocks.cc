#include "levada/plan/context_blocks.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "levada/plan/part_tree.h"

namespace levada {
namespace {

class MicroFiller {
 public:
  MicroFiller(const StepSamples& step, std::int64_t limit)
      : tokens_(step.tokens), times_(step.times), ranks_(step.ranks), max_tokens_(step.max_tokens), limit_(limit) {}

  std::optional<std::vector<OpenBlock>> fill(std::vector<std::size_t>& left, std::size_t kept) {
    if (left.size() <= kept) return {};
    may_take_ = left.size() - kept;
    std::vector<std::size_t> rest, narrow;
    place_wide(left, narrow, rest);
    place_narrow(narrow, rest);
    if (!widen()) return {};
    std::ranges::sort(rest);
    left = std::move(rest);
    std::ranges::stable_sort(blocks_, std::greater(), &OpenBlock::exponent);
    return std::move(blocks_);
  }

 private:
  bool has_room(const OpenBlock& block, std::size_t sample) const {
    const auto time = times_.at(sample, block.exponent);
    return time != does_not_fit && block.time + time <= limit_ &&
           block.tokens + padded_for(tokens_[sample], block.size()) <= max_tokens_ * block.size();
  }

  void put(OpenBlock& block, std::size_t sample) {
    block.time += times_.at(sample, block.exponent);
    block.tokens += padded_for(tokens_[sample], block.size());
    block.samples.push_back(sample);
    --may_take_;
  }

  /// Places the samples that need several ranks, the widest first, each into the fullest block that has room.
  void place_wide(std::span<const std::size_t> left, std::vector<std::size_t>& narrow, std::vector<std::size_t>& rest) {
    std::vector<std::pair<std::size_t, std::size_t>> wide;  // exponent, sample
    for (const std::size_t sample : left) {
      if (const auto exponent = times_.smallest_within(sample, limit_); exponent > 0) {
        wide.emplace_back(exponent, sample);
      } else {
        narrow.push_back(sample);
      }
    }
    std::ranges::stable_sort(wide, std::greater(), [&](const auto& each) {
      return std::pair(each.first, times_.at(each.second, each.first));
    });
    for (const auto& [exponent, sample] : wide) {
      OpenBlock* block = may_take_ > 0 ? wide_block(sample, exponent) : nullptr;
      if (block) {
        put(*block, sample);
      } else {
        rest.push_back(sample);
      }
    }
  }

  /// Returns a block of at least 2^exponent ranks with room for the sample, a new one if necessary, or null.
  OpenBlock* wide_block(std::size_t sample, std::size_t exponent) {
    for (auto at = exponent; at < times_.num_sizes(); ++at) {
      OpenBlock* fullest = nullptr;
      for (OpenBlock& block : blocks_) {
        if (block.exponent == at && has_room(block, sample) && (!fullest || block.time > fullest->time)) {
          fullest = &block;
        }
      }
      if (fullest) return fullest;
      if (at == exponent && used_ + (1 << at) <= ranks_) {
        used_ += 1 << at;
        return &blocks_.emplace_back(OpenBlock{.exponent = at});
      }
    }
    return nullptr;
  }

  /// Places the others, the longest first, each on the least loaded rank or in a wide block that has room.
  void place_narrow(std::span<const std::size_t> narrow, std::vector<std::size_t>& rest) {
    std::vector<OpenBlock> single(static_cast<std::size_t>(ranks_ - used_));
    PartTree idlest(std::max<std::size_t>(1, single.size()));
    for (std::size_t i = 0; i < single.size(); ++i) idlest.set(i, 0, 0);
    const auto block_for = [&](std::size_t sample) -> OpenBlock* {
      if (may_take_ == 0) return nullptr;
      if (!single.empty()) {
        OpenBlock& block = single[idlest.find(max_tokens_ - tokens_[sample])];
        if (has_room(block, sample)) return &block;
      }
      const auto found = std::ranges::find_if(blocks_, [&](const auto& wide) { return has_room(wide, sample); });
      return found == blocks_.end() ? nullptr : &*found;
    };
    for (const std::size_t sample : narrow) {
      OpenBlock* block = block_for(sample);
      if (!block) {
        rest.push_back(sample);
        continue;
      }
      put(*block, sample);
      if (block->exponent == 0) idlest.set(static_cast<std::size_t>(block - single.data()), block->time, block->tokens);
    }
    for (OpenBlock& block : single) {
      if (block.samples.empty()) continue;
      ++used_;
      blocks_.push_back(std::move(block));
    }
  }

  /// Doubles the costliest blocks until no rank is idle.
  bool widen() {
    while (used_ < ranks_) {
      OpenBlock* costliest = nullptr;
      for (OpenBlock& block : blocks_) {
        const bool may_double = block.exponent + 1 < times_.num_sizes() && used_ + block.size() <= ranks_;
        if (may_double && (!costliest || block.time > costliest->time)) costliest = &block;
      }
      if (!costliest) return false;
      used_ += costliest->size();
      ++costliest->exponent;
      costliest->time = costliest->tokens = 0;
      for (const std::size_t sample : costliest->samples) {
        costliest->time += times_.at(sample, costliest->exponent);
        costliest->tokens += padded_for(tokens_[sample], costliest->size());
      }
    }
    return true;
  }

  std::span<const std::int64_t> tokens_;
  const SampleTimes& times_;
  int ranks_;
  std::int64_t max_tokens_, limit_;
  std::size_t may_take_ = 0;
  int used_ = 0;  ///< ranks of all blocks
  std::vector<OpenBlock> blocks_;
};

}  // namespace

SampleTimes::SampleTimes(std::span<const std::int64_t> tokens, const ContextBalance& balance)
    : num_sizes_(static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(balance.max_cp)))) {
  times_.reserve(tokens.size() * num_sizes_);
  min_exponents_.reserve(tokens.size());
  for (const std::int64_t each : tokens) {
    std::size_t min_exponent = num_sizes_;
    for (std::size_t exponent = 0; exponent < num_sizes_; ++exponent) {
      const int size = 1 << exponent;
      const bool fits = padded_for(each, size) <= balance.max_tokens * size;
      times_.push_back(fits ? sequence_time(each, size, balance.cost) : does_not_fit);
      if (fits) min_exponent = std::min(min_exponent, exponent);
    }
    min_exponents_.push_back(min_exponent);
  }
}

std::size_t SampleTimes::smallest_within(std::size_t sample, std::int64_t limit) const {
  std::size_t fastest = min_exponents_[sample];
  for (std::size_t exponent = fastest; exponent < num_sizes_; ++exponent) {
    if (at(sample, exponent) <= limit) return exponent;
    if (at(sample, exponent) < at(sample, fastest)) fastest = exponent;
  }
  return fastest;
}

WideSum SampleTimes::total(std::span<const std::size_t> samples, std::int64_t limit) const {
  WideSum work = 0;
  for (const std::size_t sample : samples) {
    const auto exponent = smallest_within(sample, limit);
    work += WideSum{at(sample, exponent)} << exponent;
  }
  return work;
}

std::optional<std::vector<OpenBlock>> fill_micro(const StepSamples& step, std::int64_t limit,
                                                 std::vector<std::size_t>& left, std::size_t kept) {
  return MicroFiller(step, limit).fill(left, kept);
}

}  // namespace levada
