#include "levada/report/feed_report.h"

namespace levada::report {
namespace {

/// What has a fixed size, in the order in which it is written.
template <typename Rank, typename Each>
void for_each_number(Rank& rank, const Each& each) {
  each(rank.rank), each(rank.batches), each(rank.samples), each(rank.bytes), each(rank.copied_batches);
  each(rank.wait_seconds), each(rank.seconds), each(rank.is_reader);
  each(rank.bytes_read), each(rank.bytes_consumed), each(rank.prepare_bytes);
}

}  // namespace

Bytes encode(const RankReport& rank) {
  ByteWriter writer;
  for_each_number(rank, [&](const auto& value) { writer.put(value); });
  writer.put(static_cast<std::uint32_t>(rank.coordinates.size()));
  for (const auto& [axis, at] : rank.coordinates) {
    writer.put_sized(axis);
    writer.put(at);
  }
  writer.put(static_cast<std::uint32_t>(rank.fields.size()));
  for (const FieldReport& field : rank.fields) {
    for (const auto* text : {&field.name, &field.digest, &field.dtype}) writer.put_sized(*text);
    writer.put(static_cast<std::uint32_t>(field.shape.size()));
    for (const std::int64_t extent : field.shape) writer.put(extent);
  }
  return std::move(writer).take();
}

RankReport decode_rank(ByteView bytes) {
  constexpr std::size_t min_coordinate = 2 * 4, min_field = 4 * 4;
  ByteReader reader(bytes);
  RankReport rank;
  for_each_number(rank, [&]<typename T>(T& value) {
    if constexpr (std::is_same_v<T, bool>) value = reader.get<std::uint8_t>() != 0;
    else value = reader.get<T>();
  });
  rank.coordinates.resize(reader.get_count(min_coordinate));
  for (auto& [axis, at] : rank.coordinates) {
    axis = reader.get_string();
    at = reader.get<int>();
  }
  rank.fields.resize(reader.get_count(min_field));
  for (FieldReport& field : rank.fields) {
    for (auto* text : {&field.name, &field.digest, &field.dtype}) *text = reader.get_string();
    field.shape.resize(reader.get_count(sizeof(std::int64_t)));
    for (std::int64_t& extent : field.shape) extent = reader.get<std::int64_t>();
  }
  reader.expect_end();
  return rank;
}

}  // namespace levada::report
