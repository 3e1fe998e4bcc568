// The positions of tokens in a file, where they are not simply consecutive.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

namespace levada {

/// Maps positions of tokens to bytes. Stretches that follow each other in the file are one run, so tokens in storage
/// order take no memory to speak of; at worst each stretch takes 12 bytes. A value.
class TokenRuns {
 public:
  struct Place {
    std::uint64_t byte = 0;   ///< where the token begins
    std::int64_t tokens = 0;  ///< that follow each other from there on, itself among them
    bool operator==(const Place&) const = default;
  };

  explicit TokenRuns(std::size_t token_bytes) : token_bytes_(token_bytes) {}

  /// The next `tokens` positions are the tokens from `byte` on.
  void add(std::uint64_t byte, std::int64_t tokens);
  /// Returns how much memory the runs take.
  std::uint64_t bytes() const { return blocks_.size() * sizeof(Block); }
  /// Positions so far.
  std::int64_t tokens() const { return end_; }
  /// Returns the place of the token at `position`, which must be less than tokens().
  Place find(std::int64_t position) const;

 private:
  // In blocks, so that growing never copies, and a search looks at few of the runs.
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
