#include "levada/corpus/cursor.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"

namespace levada {
namespace {

constexpr std::uint32_t magic = 0x4355524c;  // "LRUC"
constexpr std::uint32_t version = 1;
constexpr std::int64_t max_sample_number = std::int64_t{1} << 62;

Order read_order(ByteReader& in) {
  Order order(in.get_count(8));
  std::set<std::string_view> names;
  for (auto& [name, value] : order) {
    name = in.get_string();
    value = in.get_string();
    if (!names.insert(name).second) in.fail("a repeated property");
  }
  return order;
}

std::string value_in(const Order& order, const std::string& name) {
  for (const auto& [key, value] : order) {
    if (key == name) return value;
  }
  return "none";
}

}  // namespace

Bytes encode_order(const Order& order) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(order.size()));
  for (const auto& [name, value] : order) {
    out.put_sized(name);
    out.put_sized(value);
  }
  return std::move(out).take();
}

Bytes encode_cursor(std::string_view corpus, ByteView order, std::int64_t next) {
  ByteWriter out;
  out.put(magic);
  out.put(version);
  out.put(next);
  out.put_sized(corpus);
  out.put_sized(order);
  out.put(hash64(out.view()));
  return std::move(out).take();
}

Bytes Cursor::encode() const {
  return encode_cursor(corpus, encode_order(order), next);
}

Cursor Cursor::decode(ByteView bytes) {
  ByteReader in(bytes);
  if (in.get<std::uint32_t>() != magic) in.fail("these bytes are no cursor");
  if (const auto found = in.get<std::uint32_t>(); found != version) {
    throw Unsupported(fmt::format("the cursor is of version {}, this build reads version {}", found, version));
  }
  Cursor cursor;
  cursor.next = in.get<std::int64_t>();
  cursor.corpus = in.get_string();
  ByteReader order(in.get_sized(), in.offset());
  cursor.order = read_order(order);
  order.expect_end();
  if (const auto sum = hash64(bytes.first(in.offset())); in.get<std::uint64_t>() != sum) in.fail("a wrong check sum");
  in.expect_end();
  if (cursor.next < 0) in.fail("a sample number below zero");
  if (cursor.next > max_sample_number) in.fail("a sample number beyond any data");
  return cursor;
}

void Cursor::expect_same(const Cursor& there) const {
  std::string differences;
  const auto add = [&](std::string_view name, const std::string& here, const std::string& other) {
    if (here != other)
      differences += fmt::format("{}{} is {}, there {}", differences.empty() ? "" : "; ", printable(name),
                                 printable(here), printable(other));
  };
  add("corpus", corpus, there.corpus);
  for (const auto& [name, value] : order) add(name, value, value_in(there.order, name));
  for (const auto& [name, value] : there.order) {
    if (value_in(order, name) == "none") add(name, "none", value);
  }
  if (!differences.empty()) throw InvalidArgument("the cursor belongs to another run of samples: here " + differences);
}

}  // namespace levada
