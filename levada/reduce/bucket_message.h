// The messages of a collective: inputs laid out consecutively in engine memory, in an order that all ranks know.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/reduce/sum.h"
#include "levada/tensor/shape.h"

namespace levada {

/// A flush has no inputs: it only compares whether ranks flush at the same point.
enum class Collective : std::uint8_t { reduce_scatter, all_reduce, all_gather, flush };

/// Returns "reduce-scatter", "all-reduce", "all-gather" or "flush".
std::string_view to_string(Collective collective);

/// The operation and the inputs of a collective. Must be the same on all ranks.
struct CollectiveSpec {
  Collective collective = Collective::reduce_scatter;
  ReduceOp op = ReduceOp::sum;
  DType dtype = {};
  std::vector<Shape> pieces = {};  ///< shape of one piece of each input
  /// Position of the inputs: the number of flushes that the rank has called before, and the number of each input in the
  /// group since the last flush. If one rank leaves out an input, ranks therefore never add up different inputs, even
  /// if they look alike.
  std::uint64_t flush = 0;
  std::vector<std::uint64_t> numbers = {};
  bool is_last = false;  ///< launched by a flush; after it, only callbacks of that flush may enqueue

  Bytes encode() const;
  /// Decodes what encode() returned. Throws CorruptMessage for anything else.
  static CollectiveSpec decode(ByteReader& reader);
  bool operator==(const CollectiveSpec&) const = default;
};

/// Returns the first difference, with the positions of both ranks, or an empty string: "input 3 is float32 [4, 5] on
/// rank 0, float32 [4, 6] on rank 2 (at input 8 after 12 flushes)". The first number counts the inputs of the bucket.
/// `rank` and `other_rank` name the ranks: "rank 2".
std::string difference(const CollectiveSpec& one, std::string_view rank, const CollectiveSpec& other,
                       std::string_view other_rank);

/// The memory layout of a bucket's inputs: in order, each at a multiple of 64 bytes, each as `copies` consecutive
/// pieces. A message may hold any number of consecutive inputs, and the layout determines their positions in it.
class BucketLayout {
 public:
  static constexpr std::size_t alignment = 64;

  /// `copies`: pieces per input. Throws InvalidArgument if a bucket exceeds the address space.
  BucketLayout(CollectiveSpec spec, int copies);

  const CollectiveSpec& spec() const { return spec_; }
  /// Ranks agree on a collective if their hashes are equal. Does not depend on the number of copies.
  std::uint64_t hash() const { return hash_; }
  std::size_t inputs() const { return piece_bytes_.size(); }
  std::size_t piece_bytes(std::size_t input) const { return piece_bytes_[input]; }
  /// Returns the bytes from the first input to the given one; for inputs(), to the end of the last one.
  std::size_t offset(std::size_t input) const { return offsets_[input]; }
  std::size_t bytes() const { return offsets_.back(); }

 private:
  CollectiveSpec spec_;
  std::uint64_t hash_ = 0;
  std::vector<std::size_t> piece_bytes_;
  std::vector<std::size_t> offsets_;
};

/// The first bytes of every message.
struct MessageHeader {
  static constexpr std::size_t bytes = 64;

  std::uint64_t layout_hash = 0;
  std::uint64_t exchange = 0;    ///< number of the exchange in the group, counted from 1
  std::uint64_t num_inputs = 0;  ///< inputs that follow the header, continuing after those of the previous message
  bool is_last = true;           ///< whether it is the sender's last message in this exchange
  int first_rank = 0;            ///< lowest of the ranks that share memory with the sender

  /// Requires a `message` of at least `bytes`.
  void write(std::span<std::byte> message) const;
  /// Throws CorruptMessage.
  static MessageHeader read(ByteView message);
};

/// A message to send: some of a bucket's inputs, after room for a header. Receivers and this object keep the block
/// alive.
struct BucketMessage {
  std::shared_ptr<const Block> block;
  std::size_t bytes = 0;  ///< header and inputs
  std::size_t num_inputs = 0;
};

/// The messages that one rank has sent in an exchange.
struct PeerMessages {
  std::vector<Lease> leases;             ///< messages that have more than a header
  std::vector<const std::byte*> inputs;  ///< the first piece of each input; empty if the layouts differ
  std::optional<std::uint64_t> layout_hash;
  int first_rank = 0;
  bool is_complete = false;

  /// Adds the next message. `layout`: this rank's. Throws CorruptMessage if the message is too short for its inputs.
  void add(Lease lease, const MessageHeader& header, const BucketLayout& layout);
};

}  // namespace levada
