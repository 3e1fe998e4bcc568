#include "levada/base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "levada/base/error.h"

namespace levada {

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array units = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

void ByteWriter::put_sized(ByteView bytes) {
  if (bytes.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument(fmt::format("a value of {} is too long for one field", format_bytes(bytes.size())));
  }
  put(static_cast<std::uint32_t>(bytes.size()));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::uint32_t ByteReader::get_count(std::size_t min_bytes) {
  const auto count = get<std::uint32_t>();
  if (count > remaining() / min_bytes) fail(fmt::format("a count of {} exceeds the remaining bytes", count));
  return count;
}

Bytes ByteReader::get_bytes() {
  const ByteView bytes = get_sized();
  return {bytes.begin(), bytes.end()};
}

std::uint8_t ByteReader::get_code(std::uint8_t first, std::uint8_t last, const char* what) {
  const auto code = get<std::uint8_t>();
  if (code < first || code > last) fail(fmt::format("unknown {} {}", what, code));
  return code;
}

void ByteReader::fail_below(const char* what, std::int64_t value, std::int64_t min) const {
  fail(fmt::format("{} {} is below {}", what, value, min));
}

void ByteReader::expect_end() const {
  if (remaining() != 0) fail(fmt::format("{} bytes too many", remaining()));
}

void ByteReader::fail(const std::string& what) const {
  throw CorruptMessage(offset(), fmt::format("corrupt message at byte {}: {}", offset(), what));
}

ByteView ByteReader::need(std::size_t count) {
  if (count > remaining()) fail(fmt::format("{} bytes expected, {} left", count, remaining()));
  const auto view = bytes_.subspan(at_, count);
  at_ += count;
  return view;
}

}  // namespace levada
