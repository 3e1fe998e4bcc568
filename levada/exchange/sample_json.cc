#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/exchange/sample_batch.h"

namespace levada {
namespace {

using Json = nlohmann::ordered_json;

/// The format nests five levels deep; deeper input is rejected before it costs memory.
constexpr int max_depth = 8;

[[noreturn]] void throw_invalid(std::string_view where, std::string_view what) {
  throw InvalidArgument(fmt::format("samples JSON: {}: {}", where, what));
}

const Json& child(const Json& object, const char* name, std::string_view where) {
  if (!object.is_object()) throw_invalid(where, fmt::format("expected an object, got {}", object.type_name()));
  if (!object.contains(name)) throw_invalid(where, fmt::format("\"{}\" is missing", name));
  return object[name];
}

const Json& list(const Json& value, std::string_view where) {
  if (!value.is_array()) throw_invalid(where, fmt::format("expected a list, got {}", value.type_name()));
  return value;
}

const std::string& text(const Json& value, std::string_view where) {
  if (!value.is_string()) throw_invalid(where, fmt::format("expected a string, got {}", value.type_name()));
  return value.get_ref<const std::string&>();
}

std::vector<std::int64_t> extents(const Json& value, std::string_view where) {
  std::vector<std::int64_t> numbers;
  for (const Json& each : list(value, where)) {
    const bool fits =
        each.is_number_unsigned() && each.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
    if (!fits) throw_invalid(where, "expected a number from 0 to 2^63-1");
    numbers.push_back(each.get<std::int64_t>());
  }
  return numbers;
}

Seqlens seqlens_in(const Json& value, std::string_view where) {
  Seqlens seqlens;
  for (const Json& item : list(value, where)) {
    if (item.is_null()) seqlens.push_absent();
    else seqlens.push_back(extents(item, fmt::format("{}[{}]", where, seqlens.size())));
  }
  return seqlens;
}

SampleKey key_in(const std::string& name, const Json& value, std::string_view where) {
  SampleKey key{.name = name};
  const Json& dtype = child(value, "dtype", where);
  if (!dtype.is_null()) key.dtype = DType::parse(text(dtype, where));
  const auto trailing = extents(child(value, "trailing", where), where);
  if (trailing.size() >= Shape::max_rank) throw_invalid(where, "\"trailing\" has too many extents");
  key.trailing = Shape(trailing);
  return key;
}

std::string hex_of(const Bytes& bytes) {
  std::string digits;
  for (const std::byte each : bytes) digits += fmt::format("{:02x}", std::to_integer<int>(each));
  return digits;
}

Bytes bytes_in(const std::string& digits, std::string_view where) {
  Bytes bytes(digits.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* begin = digits.data() + 2 * i;
    std::uint8_t byte = 0;
    if (std::from_chars(begin, begin + 2, byte, 16).ptr != begin + 2)
      throw_invalid(where, "\"message\" is not hexadecimal");
    bytes[i] = std::byte{byte};
  }
  if (digits.size() % 2 != 0) throw_invalid(where, "\"message\" has an odd number of digits");
  return bytes;
}

PlainValue value_in(const Json& value, std::string_view where) {
  if (value.is_null()) return None{};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_object() && value.size() == 1 && value.contains("message")) {
    return bytes_in(text(value["message"], where), where);
  }
  const bool fits =
      value.is_number() && (!value.is_number_unsigned() ||
                            value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (fits) return value.get<std::int64_t>();
  throw_invalid(where,
                "expected a plain value: null, a truth value, a string, a number of 64 bits, or an object with a "
                "\"message\"");
}

PlainValues values_in(const Json& object, std::string_view where) {
  if (!object.is_object()) throw_invalid(where, fmt::format("expected an object, got {}", object.type_name()));
  PlainValues values;
  for (const auto& [name, value] : object.items()) values[name] = value_in(value, where);
  return values;
}

Json as_json(const PlainValue& value) {
  return std::visit(
      [](const auto& plain) -> Json {
        using T = std::decay_t<decltype(plain)>;
        if constexpr (std::is_same_v<T, None>) return nullptr;
        else if constexpr (std::is_same_v<T, double>)
          return std::isfinite(plain) ? Json(plain) : Json(fmt::format("{}", plain));
        else if constexpr (std::is_same_v<T, Bytes>) return Json{{"message", hex_of(plain)}};
        else return plain;
      },
      value);
}

Json as_json(const Seqlens& seqlens) {
  Json items = Json::array();
  for (std::size_t i = 0; i < seqlens.size(); ++i) {
    const auto lengths = seqlens[i];
    if (!seqlens.has(i)) items.push_back(nullptr);
    else items.push_back(std::vector<std::int64_t>(lengths.begin(), lengths.end()));
  }
  return items;
}

}  // namespace

std::string SampleBatch::to_json() const {
  Json keys = Json::object();
  for (const Field& field : fields_) {
    keys[field.key.name] = {
        {"dtype", field.key.dtype.bits == 0 ? Json(nullptr) : Json(field.key.dtype.name())},
        {"trailing", std::vector<std::int64_t>(field.key.trailing.begin(), field.key.trailing.end())},
        {"seqlens", as_json(field.seqlens)}};
  }
  Json json = {{"ids", ids_}, {"keys", std::move(keys)}};
  if (!values_.empty()) {
    json["values"] = Json::array();
    for (const PlainValues& values : values_) {
      Json object = Json::object();
      for (const auto& [name, value] : values) object[name] = as_json(value);
      json["values"].push_back(std::move(object));
    }
  }
  try {
    return json.dump();
  } catch (const Json::exception&) {
    throw InvalidArgument("an id, key or value of these samples is not UTF-8, so they cannot be written as JSON");
  }
}

SampleBatch SampleBatch::from_json(std::string_view given) {
  const Json json = parse_json(given, max_depth, "samples JSON");
  std::vector<std::string> ids;
  for (const Json& id : list(child(json, "ids", "the whole"), "ids")) ids.push_back(text(id, "ids"));
  SampleBatch batch(std::move(ids));
  const Json& keys = child(json, "keys", "the whole");
  if (!keys.is_object()) throw_invalid("keys", fmt::format("expected an object, got {}", keys.type_name()));
  for (const auto& [name, value] : keys.items()) {
    const auto where = fmt::format("keys[\"{:.60}\"]", name);
    batch.set(key_in(name, value, where), seqlens_in(child(value, "seqlens", where), where + ".seqlens"));
  }
  if (json.contains("values")) {
    const Json& values = list(json["values"], "values");
    if (values.size() != batch.size())
      throw_invalid("values", fmt::format("{} objects for {} samples", values.size(), batch.size()));
    for (std::size_t i = 0; i < batch.size(); ++i)
      batch.set_values(i, values_in(values[i], fmt::format("values[{}]", i)));
  }
  return batch;
}

}  // namespace levada
