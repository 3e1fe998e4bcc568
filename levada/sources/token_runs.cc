#include "levada/sources/token_runs.h"

#include <algorithm>
#include <limits>

namespace levada {
namespace {

constexpr std::int64_t max_run = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void TokenRuns::begin_run(std::uint64_t byte) {
  if (blocks_.empty() || blocks_.back().size == block_runs) blocks_.push_back({.begin = end_});
  auto& block = blocks_.back();
  block.bytes[block.size++] = byte;
}

void TokenRuns::add(std::uint64_t byte, std::int64_t tokens) {
  while (tokens > 0) {
    const auto* last = blocks_.empty() ? nullptr : &blocks_.back();
    const auto length = last == nullptr ? 0 : std::int64_t{last->tokens[last->size - 1]};
    const bool follows =
        last != nullptr && byte == last->bytes[last->size - 1] + static_cast<std::uint64_t>(length) * token_bytes_;
    if (!follows || length == max_run) begin_run(byte);
    auto& block = blocks_.back();
    auto& run = block.tokens[block.size - 1];
    const auto added = std::min(tokens, max_run - run);
    run += static_cast<std::uint32_t>(added);
    end_ += added;
    tokens -= added;
    byte += static_cast<std::uint64_t>(added) * token_bytes_;
  }
}

TokenRuns::Place TokenRuns::find(std::int64_t position) const {
  const auto behind = std::ranges::upper_bound(blocks_, position, {}, &Block::begin);
  const auto& block = *std::prev(behind);
  auto before = position - block.begin;
  std::size_t run = 0;
  while (before >= block.tokens[run]) before -= block.tokens[run++];
  return {block.bytes[run] + static_cast<std::uint64_t>(before) * token_bytes_, block.tokens[run] - before};
}

}  // namespace levada
