#include "levada/reduce/contribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "levada/base/error.h"
#include "levada/tensor/codec.h"

namespace levada {
namespace {

constexpr std::uint64_t magic = 0x3145'4355'4445'524C;  // "LREDUCE1"
// Magic, where the spec begins, its bytes, marks, exchange, first rank.
constexpr std::size_t prefix_bytes = 64;
constexpr std::uint64_t last_message = 1, announces = 2;
constexpr std::size_t exchange_at = 4 * sizeof(std::uint64_t), first_rank_at = 5 * sizeof(std::uint64_t);
constexpr std::size_t alignment = 64;
/// Of a spec: collective, operation, dtype and count; then a rank and extents an input, and its position.
constexpr std::size_t spec_bytes = 16;
constexpr std::size_t most_shape_bytes = 1 + 8 * Shape::max_rank + sizeof(std::uint32_t);

/// What messages have said and is kept.
constexpr std::size_t most_known = 64;

/// Where the inputs lie behind the prefix; empty if that is nowhere.
std::optional<Inputs> place(CollectiveSpec spec, int count) {
  Inputs inputs;
  std::uint64_t at = prefix_bytes;
  for (const Shape& piece : spec.pieces) {
    const auto bytes = tensor_bytes(spec.dtype, piece);
    const auto all = bytes ? checked_mul(*bytes, static_cast<std::uint64_t>(count)) : std::nullopt;
    const auto end = all ? checked_add(at, *all) : std::nullopt;
    if (!end || *end > UINT64_MAX - alignment) return std::nullopt;
    inputs.offsets.push_back(at);
    inputs.bytes.push_back(*bytes);
    at = align_up(*end, alignment);
  }
  inputs.end = at;
  inputs.spec = std::move(spec);
  return inputs;
}

std::size_t write_spec(std::span<std::byte> block, std::size_t at, const CollectiveSpec& spec,
                       std::span<const std::uint32_t> positions, std::uint64_t marks) {
  Bytes encoded = spec.encode();
  const auto tail = std::as_bytes(positions);
  encoded.insert(encoded.end(), tail.begin(), tail.end());
  if (at > block.size() || encoded.size() > block.size() - at) {
    throw InvalidArgument("the contribution is larger than its block");
  }
  std::memcpy(block.data() + at, encoded.data(), encoded.size());  // not payload: shapes
  const std::uint64_t prefix[] = {magic, at, encoded.size(), marks};
  std::memcpy(block.data(), prefix, sizeof(prefix));  // not payload: the prefix
  return at + encoded.size();
}

}  // namespace

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::reduce_scatter: return "reduce-scatter";
    case Collective::all_reduce: return "all-reduce";
    case Collective::all_gather: return "all-gather";
  }
  return "unknown";
}

Bytes CollectiveSpec::encode() const {
  ByteWriter writer;
  writer.put(collective);
  writer.put(op);
  put_dtype(writer, dtype);
  writer.put(static_cast<std::uint32_t>(pieces.size()));
  for (const Shape& piece : pieces) put_shape(writer, piece);
  return std::move(writer).take();
}

CollectiveSpec CollectiveSpec::decode(ByteReader& reader) {
  CollectiveSpec spec;
  spec.collective = reader.get_enum(Collective::reduce_scatter, Collective::all_gather, "collective");
  spec.op = reader.get_enum(ReduceOp::sum, ReduceOp::average, "reduction");
  spec.dtype = get_dtype(reader);
  const auto count = reader.get_count(1);
  spec.pieces.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Shape piece = get_shape(reader);
    if (!tensor_bytes(spec.dtype, piece)) reader.fail("a shape that is none");
    spec.pieces.push_back(piece);
  }
  return spec;
}

std::string difference(const CollectiveSpec& one, int rank, const CollectiveSpec& other, int other_rank) {
  if (one == other) return {};
  if (one.collective != other.collective) {
    return fmt::format("rank {} calls {}, rank {} {}", rank, to_string(one.collective), other_rank,
                       to_string(other.collective));
  }
  if (one.op != other.op) {
    return fmt::format("rank {} has a {}, rank {} a {}", rank, to_string(one.op), other_rank, to_string(other.op));
  }
  const auto input = [](const CollectiveSpec& spec, std::size_t i) {
    return i < spec.pieces.size() ? fmt::format("{} {}", spec.dtype.name(), spec.pieces[i].to_string())
                                  : std::string("not there");
  };
  for (std::size_t i = 0; i < std::max(one.pieces.size(), other.pieces.size()); ++i) {
    const auto here = input(one, i);
    const auto there = input(other, i);
    if (here != there) return fmt::format("input {} is {} on rank {}, {} on rank {}", i, here, rank, there, other_rank);
  }
  return {};
}

std::size_t Contribution::block_bytes(std::size_t bytes, std::size_t inputs) {
  return prefix_bytes + bytes + inputs * (alignment + most_shape_bytes) + spec_bytes;
}

Contribution::Contribution(Block block, int ranks, CollectiveSpec spec)
    : block_(std::move(block)), count_(spec.count(ranks)), spec_(std::move(spec)), used_(prefix_bytes) {}

bool Contribution::has_room(std::size_t bytes) const {
  const std::size_t spec = spec_bytes + (spec_.pieces.size() + 1) * most_shape_bytes;
  const std::size_t size = block_.memory().size();
  return used_ + alignment + spec <= size && bytes <= size - used_ - alignment - spec;
}

std::size_t Contribution::add(const Shape& piece, std::size_t position) {
  positions_.push_back(static_cast<std::uint32_t>(position));
  spec_.pieces.push_back(piece);
  offsets_.push_back(used_);
  bytes_.push_back(spec_.piece_bytes(bytes_.size()));
  used_ = align_up(used_ + bytes_.back() * static_cast<std::size_t>(count_), alignment);
  return bytes_.size() - 1;
}

std::byte* Contribution::data(std::size_t input) const {
  return block_.memory().data() + offsets_[input];
}

Contribution::Message Contribution::finish(bool last) && {
  const std::size_t bytes = write_spec(block_.memory(), used_, spec_, positions_, last ? last_message : 0);
  return {std::move(block_), bytes};
}

Contribution::Message Contribution::announcement(Block block, const CollectiveSpec& spec, int first_rank) {
  std::vector<std::uint32_t> positions(spec.pieces.size());
  std::iota(positions.begin(), positions.end(), 0U);
  const std::size_t bytes = write_spec(block.memory(), prefix_bytes, spec, positions, last_message | announces);
  const std::int64_t first = first_rank;
  std::memcpy(block.memory().data() + first_rank_at, &first, sizeof first);  // not payload: the prefix
  return {std::move(block), bytes};
}

void Contribution::number(Block& block, std::uint64_t exchange) {
  std::memcpy(block.memory().data() + exchange_at, &exchange, sizeof exchange);  // not payload: the prefix
}

std::shared_ptr<const Inputs> InputsReader::read(ByteView message, bool has_inputs) {
  ByteReader prefix(message);
  if (prefix.get<std::uint64_t>() != magic) prefix.fail("no contribution to a reduction");
  const auto at = prefix.get<std::uint64_t>();
  const auto bytes = prefix.get<std::uint64_t>();
  if (at > message.size() || bytes > message.size() - at)
    prefix.fail("the spec of the collective lies outside the message");
  const ByteView encoded = message.subspan(at, bytes);
  const auto found = std::ranges::find_if(known_, [&](const Known& each) {
    return each.encoded.size() == bytes && std::memcmp(each.encoded.data(), encoded.data(), bytes) == 0;
  });
  std::shared_ptr<const Inputs> inputs;
  if (found != known_.end()) {
    inputs = found->inputs;
  } else {
    // Of a copy, for the message may change while it is read.
    Known now{.encoded = Bytes(encoded.begin(), encoded.end()), .inputs = {}};  // not payload: shapes
    ByteReader reader(now.encoded);
    CollectiveSpec spec = CollectiveSpec::decode(reader);
    std::vector<std::uint32_t> positions;
    for (std::size_t i = 0; i < spec.pieces.size(); ++i) positions.push_back(reader.get<std::uint32_t>());
    reader.expect_end();
    const int count = spec.count(ranks_);
    auto placed = place(std::move(spec), count);
    if (!placed) prefix.fail("the inputs fit into no message");
    placed->positions = std::move(positions);
    inputs = now.inputs = std::make_shared<Inputs>(*std::move(placed));
    if (known_.size() < most_known) known_.push_back(std::move(now));
    else known_[oldest_++ % most_known] = std::move(now);
  }
  if (has_inputs && inputs->end > at) prefix.fail("the inputs do not fit into the message");
  return inputs;
}

ContributionView::ContributionView(ByteView message, InputsReader& reader) : message_(message) {
  // Looked at once: the message may change while it is read.
  ByteReader prefix(message.size() < prefix_bytes ? message : message.subspan(3 * sizeof(std::uint64_t)));
  const auto marks = prefix.get<std::uint64_t>();
  exchange_ = prefix.get<std::uint64_t>();
  first_rank_ = static_cast<int>(prefix.get<std::int64_t>());
  last_ = (marks & last_message) != 0;
  has_inputs_ = (marks & announces) == 0;
  inputs_ = reader.read(message, has_inputs_);
}

}  // namespace levada
