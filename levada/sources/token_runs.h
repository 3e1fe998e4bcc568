// Maps token positions to file offsets, for tokens that are not simply consecutive.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

namespace levada {

/// Maps positions of tokens to bytes. Stretches that are adjacent in the file form one run, so tokens in storage order
/// take almost no memory; at worst each stretch takes 12 bytes. A value.
class TokenRuns {
 public:
  struct Place {
    std::uint64_t byte = 0;   ///< offset of the token
    std::int64_t tokens = 0;  ///< number of contiguous tokens from this one on, itself included
    bool operator==(const Place&) const = default;
  };

  explicit TokenRuns(std::size_t token_bytes) : token_bytes_(token_bytes) {}

  /// Maps the next `tokens` positions to the tokens at `byte` and after.
  void add(std::uint64_t byte, std::int64_t tokens);
  /// Returns the memory that the runs take.
  std::uint64_t bytes() const { return blocks_.size() * sizeof(Block); }
  /// Returns the number of positions so far.
  std::int64_t tokens() const { return end_; }
  /// Returns the place of the token at `position`, which must be less than tokens().
  Place find(std::int64_t position) const;

 private:
  // In blocks, so that growing never copies, and a search examines few of the runs.
  static constexpr std::size_t block_runs = 64;
  struct Block {
    std::int64_t begin = 0;  ///< position of its first token
    std::size_t size = 0;
    std::array<std::uint64_t, block_runs> bytes{};
    std::array<std::uint32_t, block_runs> tokens{};
  };

  void begin_run(std::uint64_t byte);

  std::size_t token_bytes_;
  std::deque<Block> blocks_;
  std::int64_t end_ = 0;
};

}  // namespace levada
