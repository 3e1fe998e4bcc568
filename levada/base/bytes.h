// Bytes, overflow-checked arithmetic for untrusted sizes, and a reader and a writer of little-endian fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace levada {

using ByteView = std::span<const std::byte>;
using Bytes = std::vector<std::byte>;

inline ByteView as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns the next multiple of `alignment`, a power of two.
constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

/// Return the sum or product, or nothing on overflow. For untrusted numbers.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Returns a human-readable size: "1.5 KiB", "12.5 MiB".
std::string format_bytes(std::uint64_t bytes);

/// Appends little-endian fields to a growing buffer.
class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void put_bytes(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// Appends a 32-bit length, then the bytes. Throws InvalidArgument beyond 4 GiB.
  void put_sized(ByteView bytes);
  void put_sized(std::string_view text) { put_sized(as_bytes(text)); }

  ByteView view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  Bytes take() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Reads the fields that ByteWriter wrote from untrusted bytes. Every read is bounds-checked and may throw
/// CorruptMessage, with the offset from the start of `bytes` plus `base`. Returned views are valid as long as `bytes`.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes, std::size_t base = 0) : bytes_(bytes), base_(base) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, need(sizeof(T)).data(), sizeof(T));
    return value;
  }
  ByteView get_sized() { return need(get<std::uint32_t>()); }
  std::string get_string() { return std::string(as_text(get_sized())); }
  /// Like get_sized(), but returns a copy.
  Bytes get_bytes();
  /// Reads a one-byte enum whose members are `first` to `last`; `what` names it in the error.
  template <typename E>
  E get_enum(E first, E last, const char* what) {
    static_assert(std::is_enum_v<E> && sizeof(E) == 1);
    return static_cast<E>(get_code(static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last), what));
  }
  /// Reads a number that must be at least `min`; `what` names it in the error.
  template <typename T>
  T get_at_least(T min, const char* what) {
    const auto value = get<T>();
    if (value < min) fail_below(what, value, min);
    return value;
  }
  /// Reads a 32-bit count of elements that take at least `min_bytes` each. Fails if fewer bytes remain than they need.
  std::uint32_t get_count(std::size_t min_bytes);

  std::size_t offset() const { return base_ + at_; }
  std::size_t remaining() const { return bytes_.size() - at_; }
  /// Throws CorruptMessage unless everything has been read.
  void expect_end() const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  ByteView need(std::size_t count);
  std::uint8_t get_code(std::uint8_t first, std::uint8_t last, const char* what);
  [[noreturn]] void fail_below(const char* what, std::int64_t value, std::int64_t min) const;

  ByteView bytes_;
  std::size_t base_;
  std::size_t at_ = 0;
};

}  // namespace levada
