#include "levada/reduce/bucket_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/tensor/codec.h"
#include "levada/tensor/tensor.h"

namespace levada {
namespace {

constexpr std::uint64_t magic = 0x3245'4355'4445'524C;  // "LREDUCE2"

}  // namespace

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::reduce_scatter: return "reduce-scatter";
    case Collective::all_reduce: return "all-reduce";
    case Collective::all_gather: return "all-gather";
    case Collective::flush: return "flush";
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
  writer.put(flush);
  for (const std::uint64_t number : numbers) writer.put(number);
  writer.put(static_cast<std::uint8_t>(is_last));
  return std::move(writer).take();
}

CollectiveSpec CollectiveSpec::decode(ByteReader& reader) {
  CollectiveSpec spec;
  spec.collective = reader.get_enum(Collective::reduce_scatter, Collective::flush, "collective");
  spec.op = reader.get_enum(ReduceOp::sum, ReduceOp::average, "reduction");
  spec.dtype = get_dtype(reader);
  const auto count = reader.get_count(1);
  spec.pieces.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) spec.pieces.push_back(get_shape(reader));
  spec.flush = reader.get<std::uint64_t>();
  for (std::uint32_t i = 0; i < count; ++i) spec.numbers.push_back(reader.get<std::uint64_t>());
  spec.is_last = reader.get<std::uint8_t>() != 0;
  return spec;
}

std::string difference(const CollectiveSpec& one, std::string_view rank, const CollectiveSpec& other,
                       std::string_view other_rank) {
  constexpr std::string_view remedy =
      "enqueue the same inputs between two flushes on all ranks, zeros for one that a rank lacks";
  const auto place = [](const CollectiveSpec& spec, std::size_t i) {
    if (i < spec.numbers.size()) return fmt::format("input {} after {} flushes", spec.numbers[i], spec.flush);
    const bool flushes = spec.is_last || spec.collective == Collective::flush;
    return fmt::format("{} after {} flushes", flushes ? "its next flush" : "the end of its bucket", spec.flush);
  };
  const auto with_places = [&](std::string_view what, std::size_t i) {
    const std::string here = place(one, i), there = place(other, i);
    if (here == there) return fmt::format("{} (at {})", what, here);
    return fmt::format("{}; {} is at {}, {} at {}; {}", what, rank, here, other_rank, there, remedy);
  };
  if (one.collective != other.collective) {
    return with_places(
        fmt::format("{} calls {}, {} {}", rank, to_string(one.collective), other_rank, to_string(other.collective)), 0);
  }
  if (one.op != other.op) {
    return with_places(fmt::format("{} calls {}, {} {}", rank, to_string(one.op), other_rank, to_string(other.op)), 0);
  }
  const auto describe = [](const CollectiveSpec& spec, std::size_t i) {
    return i < spec.pieces.size() ? fmt::format("{} {}", spec.dtype.name(), spec.pieces[i].to_string())
                                  : std::string("missing");
  };
  for (std::size_t i = 0; i < std::max(one.pieces.size(), other.pieces.size()); ++i) {
    const auto here = describe(one, i), there = describe(other, i);
    if (here == there) continue;
    return with_places(fmt::format("input {} is {} on {}, {} on {}", i, here, rank, there, other_rank), i);
  }
  if (one.flush != other.flush || one.numbers != other.numbers) {
    const auto differing = std::ranges::mismatch(one.numbers, other.numbers).in1 - one.numbers.begin();
    const std::size_t i = one.flush == other.flush ? static_cast<std::size_t>(differing) : 0;
    return fmt::format("{} is at {}, {} at {}; {}", rank, place(one, i), other_rank, place(other, i), remedy);
  }
  if (one.is_last == other.is_last) return {};
  return fmt::format("{} flushes after these inputs, {} has more before; {}", one.is_last ? rank : other_rank,
                     one.is_last ? other_rank : rank, remedy);
}

BucketLayout::BucketLayout(CollectiveSpec spec, int copies) : spec_(std::move(spec)), hash_(hash64(spec_.encode())) {
  piece_bytes_.reserve(spec_.pieces.size());
  offsets_.reserve(spec_.pieces.size() + 1);
  std::uint64_t end = 0;
  for (const Shape& piece : spec_.pieces) {
    const auto bytes = tensor_bytes(spec_.dtype, piece);
    const auto all = bytes ? checked_mul(*bytes, static_cast<std::uint64_t>(copies)) : std::nullopt;
    if (!all || *all > PTRDIFF_MAX - end - alignment) {
      throw InvalidArgument(fmt::format("a bucket cannot hold input {}: {} pieces of {} {}", piece_bytes_.size(),
                                        copies, spec_.dtype.name(), piece.to_string()));
    }
    piece_bytes_.push_back(*bytes);
    offsets_.push_back(end);
    end += align_up(*all, alignment);
  }
  offsets_.push_back(end);
}

void MessageHeader::write(std::span<std::byte> message) const {
  const std::uint64_t fields[] = {magic,      layout_hash,      exchange,
                                  num_inputs, is_last ? 1U : 0, static_cast<std::uint64_t>(first_rank)};
  static_assert(sizeof fields <= bytes);
  std::memcpy(message.data(), fields, sizeof fields);  // not payload: the header
}

MessageHeader MessageHeader::read(ByteView message) {
  ByteReader reader(message);
  if (message.size() < bytes) reader.fail("a message of a collective is shorter than its header");
  if (reader.get<std::uint64_t>() != magic) reader.fail("not a message of a collective");
  MessageHeader header;
  header.layout_hash = reader.get<std::uint64_t>();
  header.exchange = reader.get<std::uint64_t>();
  header.num_inputs = reader.get<std::uint64_t>();
  header.is_last = reader.get<std::uint64_t>() != 0;
  header.first_rank = static_cast<int>(reader.get<std::uint64_t>());
  return header;
}

void PeerMessages::add(Lease lease, const MessageHeader& header, const BucketLayout& layout) {
  if (layout_hash && header.layout_hash != *layout_hash) {
    throw CorruptMessage(0, "the messages of one collective have different layouts");
  }
  layout_hash = header.layout_hash;
  first_rank = header.first_rank;
  is_complete = header.is_last;
  if (layout_hash == layout.hash()) {
    const std::size_t first = inputs.size();
    if (header.num_inputs > layout.inputs() - first) {
      throw CorruptMessage(0, fmt::format("a message has inputs {} to {} of a bucket of {}", first,
                                          first + header.num_inputs, layout.inputs()));
    }
    const std::size_t end = first + header.num_inputs, begin = layout.offset(first);
    if (layout.offset(end) - begin > lease.bytes.size() - MessageHeader::bytes) {
      throw CorruptMessage(lease.bytes.size(), "a message of a collective is too short for its inputs");
    }
    const std::byte* const data = lease.bytes.data() + MessageHeader::bytes;
    for (std::size_t i = first; i < end; ++i) inputs.push_back(data + (layout.offset(i) - begin));
  }
  if (lease.bytes.size() > MessageHeader::bytes) leases.push_back(std::move(lease));
}

}  // namespace levada
