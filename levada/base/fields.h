// Serializes structs to bytes and back. One list of a struct's fields serves both directions.
//
//   struct Point {
//     std::int64_t x = 0, y = 0;
//     static auto fields(auto& self) { return std::tie(self.x, self.y); }
//   };
//
// Fields are arithmetic values, enums whose first member is 1 and whose last one is last_of(), strings, Bytes, other
// structs, and vectors, optionals, pairs and variants of these. Signed integers are counts: negative ones are rejected.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "levada/base/bytes.h"

namespace levada {

template <typename T>
concept Fielded = requires(T& value) {
  T::fields(value);
};

class FieldWriter {
 public:
  template <Fielded T>
  void put(const T& value) {
    std::apply([this](const auto&... field) { (this->put(field), ...); }, T::fields(value));
  }
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void put(const T& value) {
    if constexpr (std::same_as<T, bool>) out_.put(std::uint8_t{value});
    else out_.put(value);
  }
  void put(const std::string& text) { out_.put_sized(std::string_view(text)); }
  void put(const Bytes& bytes) { out_.put_sized(ByteView(bytes)); }
  template <typename T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <typename T, typename U>
  void put(const std::pair<T, U>& value) {
    put(value.first);
    put(value.second);
  }
  template <typename... T>
  void put(const std::variant<T...>& value) {
    put(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& alternative) { this->put(alternative); }, value);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    for (const auto& value : values) put(value);
  }
  /// A vector of consecutive numbers is written as its length and first number only.
  void put(const std::vector<std::int64_t>& numbers);

  Bytes take() && { return std::move(out_).take(); }

 private:
  ByteWriter out_;
};

/// Reads untrusted bytes. Throws CorruptMessage.
class FieldReader {
 public:
  explicit FieldReader(ByteView bytes) : in_(bytes) {}

  template <Fielded T>
  void get(T& value) {
    std::apply([this](auto&... field) { (this->get(field), ...); }, T::fields(value));
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void get(T& value) {
    if constexpr (std::same_as<T, bool>) {
      const auto code = in_.get<std::uint8_t>();
      if (code > 1) in_.fail("a flag that is neither 0 nor 1");
      value = code == 1;
    } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      value = in_.get_at_least(T{0}, "a number");
    } else {
      value = in_.get<T>();
    }
  }
  template <typename T>
  requires std::is_enum_v<T>
  void get(T& value) { value = in_.get_enum(static_cast<T>(1), last_of(T{}), "code"); }
  void get(std::string& text) { text = in_.get_string(); }
  void get(Bytes& bytes) { bytes = in_.get_bytes(); }
  template <typename T>
  void get(std::optional<T>& value) {
    bool is_there = false;
    get(is_there);
    value.reset();  // its default may be a value
    if (is_there) get(value.emplace());
  }
  template <typename T, typename U>
  void get(std::pair<T, U>& value) {
    get(value.first);
    get(value.second);
  }
  template <typename... T>
  void get(std::variant<T...>& value) {
    const auto index = in_.get<std::uint8_t>();
    if (index >= sizeof...(T)) in_.fail("an alternative that there is not");
    std::size_t at = 0;
    ((at++ == index ? get(value.template emplace<T>()) : void()), ...);
  }
  template <typename T>
  void get(std::vector<T>& values) {
    // Not reserved: memory grows only as values arrive.
    for (auto count = in_.get_count(1); count > 0; --count) get(values.emplace_back());
  }
  void get(std::vector<std::int64_t>& numbers);

  void expect_end() const { in_.expect_end(); }

 private:
  ByteReader in_;
};

template <Fielded T>
Bytes encode(const T& value) {
  FieldWriter writer;
  writer.put(value);
  return std::move(writer).take();
}

/// Throws CorruptMessage, also if T::check() rejects a value.
template <Fielded T>
T decode(ByteView bytes) {
  FieldReader reader(bytes);
  T value;
  reader.get(value);
  reader.expect_end();
  if constexpr (requires { value.check(); }) value.check();
  return value;
}

}  // namespace levada
