// What one rank gives to a reduction, as a message: inputs side by side in engine memory, each with a piece for every
// rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/reduce/sum.h"
#include "levada/tensor/tensor.h"

namespace levada {

/// What a group's ranks do together.
enum class Collective : std::uint8_t { reduce_scatter, all_reduce, all_gather };

/// "reduce-scatter", "all-reduce", "all-gather".
std::string_view to_string(Collective collective);

/// What a collective does with which inputs, which all ranks must mean alike. A value.
struct CollectiveSpec {
  Collective collective = Collective::reduce_scatter;
  ReduceOp op = ReduceOp::sum;
  DType dtype = {};
  std::vector<Shape> pieces = {};  ///< of each input: the shape of one of its pieces

  /// Pieces of each input: one for each of `ranks` ranks, or, of an all-gather, one for all.
  int count(int ranks) const { return collective == Collective::all_gather ? 1 : ranks; }
  std::size_t piece_bytes(std::size_t input) const { return *tensor_bytes(dtype, pieces[input]); }
  Bytes encode() const;
  /// Reads what encode() gave, of bytes that may lie. Throws CorruptMessage.
  static CollectiveSpec decode(ByteReader& reader);
  bool operator==(const CollectiveSpec&) const = default;
};

/// In words what differs first: "input 3 is float32 [4, 5] on rank 0 and float32 [4, 6] on rank 2". Empty if nothing.
std::string difference(const CollectiveSpec& one, int rank, const CollectiveSpec& other, int other_rank);

/// A message being written.
class Contribution {
 public:
  /// Bytes of a Block that has room for inputs of `bytes` in all, `inputs` of them.
  static std::size_t block_bytes(std::size_t bytes, std::size_t inputs);

  /// `spec`: without inputs yet. `ranks`: of the group.
  Contribution(Block block, int ranks, CollectiveSpec spec);

  /// Whether one more input, of `bytes` in all, has room.
  bool has_room(std::size_t bytes) const;
  /// Its number here; its bytes are unset. `position`: among all inputs of the reduction.
  std::size_t add(const Shape& piece, std::size_t position);
  /// Where the first piece of an input begins; the others follow, each of piece_bytes(input).
  std::byte* data(std::size_t input) const;
  std::size_t piece_bytes(std::size_t input) const { return bytes_[input]; }
  /// Pieces of each input.
  int count() const { return count_; }
  const CollectiveSpec& spec() const { return spec_; }
  /// Of each input among all of the reduction.
  const std::vector<std::uint32_t>& positions() const { return positions_; }
  /// Of the first input, when that has become known; a piece of as many bytes as before.
  void settle(ReduceOp op, Shape piece, std::size_t position) {
    spec_.op = op;
    spec_.pieces.front() = std::move(piece);
    positions_.front() = static_cast<std::uint32_t>(position);
  }

  /// The Block and how many bytes of it are to be sent.
  struct Message {
    Block block;
    std::size_t bytes = 0;
  };
  /// `last`: of the messages with which this rank contributes to one reduction.
  Message finish(bool last) &&;
  /// A message of one's own that says what is contributed, and has no inputs, in a block of block_bytes(0, inputs).
  /// `first_rank`: the lowest of the ranks that share memory with the sender.
  static Message announcement(Block block, const CollectiveSpec& spec, int first_rank);
  /// Writes into a message to which of the group's exchanges of messages it belongs, counted from 1.
  static void number(Block& block, std::uint64_t exchange);

 private:
  Block block_;
  int count_;
  CollectiveSpec spec_;
  std::vector<std::size_t> offsets_, bytes_;
  std::vector<std::uint32_t> positions_;
  std::size_t used_;
};

/// What a message says that it holds.
struct Inputs {
  CollectiveSpec spec;
  std::vector<std::size_t> offsets;      ///< of each input's first piece, in the message
  std::vector<std::size_t> bytes;        ///< of each of its pieces
  std::vector<std::uint32_t> positions;  ///< among all inputs of the reduction, as the sender says
  std::size_t end = 0;                   ///< of the last one
};

/// Reads what messages say, most of which say the same again and again. One thread at a time.
class InputsReader {
 public:
  /// `ranks`: for how many there are pieces in a message, all of the group or one.
  explicit InputsReader(int ranks) : ranks_(ranks) {}
  /// Of bytes that may lie; messages that say the same give the same object, unless there were many others between.
  /// Throws CorruptMessage.
  /// `has_inputs`: unless it is an announcement.
  std::shared_ptr<const Inputs> read(ByteView message, bool has_inputs);

 private:
  struct Known {
    Bytes encoded;
    std::shared_ptr<const Inputs> inputs;
  };
  int ranks_;
  std::vector<Known> known_;
  std::size_t oldest_ = 0;
};

/// A message as it came: views of it.
class ContributionView {
 public:
  /// Throws CorruptMessage for bytes that are none.
  ContributionView(ByteView message, InputsReader& reader);

  const std::shared_ptr<const Inputs>& inputs() const { return inputs_; }
  const CollectiveSpec& spec() const { return inputs_->spec; }
  bool is_last() const { return last_; }
  /// Whether this is no announcement; pieces are of those alone.
  bool has_inputs() const { return has_inputs_; }
  /// What an announcement says.
  int first_rank() const { return first_rank_; }
  /// What Contribution::number() wrote.
  std::uint64_t exchange() const { return exchange_; }
  const std::byte* piece(std::size_t input, int number) const {
    return message_.data() + inputs_->offsets[input] + static_cast<std::size_t>(number) * inputs_->bytes[input];
  }

 private:
  ByteView message_;
  bool last_ = false;
  bool has_inputs_ = true;
  std::uint64_t exchange_ = 0;
  int first_rank_ = 0;
  std::shared_ptr<const Inputs> inputs_;
};

}  // namespace levada
