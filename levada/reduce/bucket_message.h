// What ranks send each other in a collective: inputs side by side in engine memory, in an order that all ranks know.
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

/// A flush has no inputs: ranks compare that they flush at the same place.
enum class Collective : std::uint8_t { reduce_scatter, all_reduce, all_gather, flush };

/// Returns "reduce-scatter", "all-reduce", "all-gather" or "flush".
std::string_view to_string(Collective collective);

/// What a collective does with which inputs. It must be the same on all ranks.
struct CollectiveSpec {
  Collective collective = Collective::reduce_scatter;
  ReduceOp op = ReduceOp::sum;
  DType dtype = {};
  std::vector<Shape> pieces = {};  ///< the shape of one piece of each input
  /// Where the inputs are: how many flushes the rank has called before, and the number of each input in the group since
  /// the last one. So ranks of which one has left out an input do not add up different ones, however alike they are.
  std::uint64_t flush = 0;
  std::vector<std::uint64_t> numbers = {};
  bool is_last = false;  ///< a flush launched it; after it only what callbacks of this flush enqueue

  Bytes encode() const;
  /// Reads what encode() returned. Throws CorruptMessage for anything else.
  static CollectiveSpec decode(ByteReader& reader);
  bool operator==(const CollectiveSpec&) const = default;
};

/// Returns the first difference: "input 3 is float32 [4, 5] on rank 0, float32 [4, 6] on rank 2". Empty if there is
/// none. `rank` and `other_rank` name the ranks: "rank 2".
std::string difference(const CollectiveSpec& one, std::string_view rank, const CollectiveSpec& other,
                       std::string_view other_rank);

/// Where the inputs of a bucket lie: in order, each at a multiple of 64 bytes, each as `copies` pieces side by side. A
/// rank may send any number of consecutive inputs in one message, so the layout alone says where they lie in it.
class BucketLayout {
 public:
  static constexpr std::size_t alignment = 64;

  /// `copies`: pieces of each input. Throws InvalidArgument where a bucket is too large for an address space.
  BucketLayout(CollectiveSpec spec, int copies);

  const CollectiveSpec& spec() const { return spec_; }
  /// Ranks agree on a collective if they have the same hash. Equal for any number of copies.
  std::uint64_t hash() const { return hash_; }
  std::size_t inputs() const { return piece_bytes_.size(); }
  std::size_t piece_bytes(std::size_t input) const { return piece_bytes_[input]; }
  /// Bytes from the first input to the given one; for inputs(), to the end of the last one.
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
  std::uint64_t exchange = 0;    ///< which of the group's exchanges of messages it belongs to, counted from 1
  std::uint64_t num_inputs = 0;  ///< behind the header; the first one follows the last one of the message before
  bool is_last = true;           ///< of the sender's messages in this exchange
  int first_rank = 0;            ///< the lowest of the ranks that share memory with the sender

  /// `message`: at least `bytes` long.
  void write(std::span<std::byte> message) const;
  /// Throws CorruptMessage.
  static MessageHeader read(ByteView message);
};

/// A message to be sent: some of a bucket's inputs behind room for a header. Receivers and this object keep the block.
struct BucketMessage {
  std::shared_ptr<const Block> block;
  std::size_t bytes = 0;  ///< header and inputs
  std::size_t num_inputs = 0;
};

/// What one rank has sent in an exchange.
struct PeerMessages {
  std::vector<Lease> leases;             ///< of messages that are more than a header
  std::vector<const std::byte*> inputs;  ///< where the first piece of each begins; empty where the layouts differ
  std::optional<std::uint64_t> layout_hash;
  int first_rank = 0;
  bool is_complete = false;

  /// Adds the next message. `layout`: this rank's. Throws CorruptMessage where the message does not hold its inputs.
  void add(Lease lease, const MessageHeader& header, const BucketLayout& layout);
};

}  // namespace levada
