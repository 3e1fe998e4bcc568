// Megatron-LM data sets written byte by byte, without the library's reader and writer: for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace levada {

/// The fields of an .idx, each settable to any value. `modes` may be empty.
struct RawIndex {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t dtype = 8;  // uint16
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> places;
  std::vector<std::int64_t> documents;
  std::vector<std::int8_t> modes;
  std::uint64_t sequences_more = 0, documents_more = 0;  ///< excess of the claimed counts over the real ones

  std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, dtype);
    put(out, std::uint64_t{lengths.size()} + sequences_more);
    put(out, std::uint64_t{documents.size()} + documents_more);
    for (const auto each : lengths) put(out, each);
    for (const auto each : places) put(out, each);
    for (const auto each : documents) put(out, each);
    for (const auto each : modes) put(out, each);
    return out;
  }

  template <typename T>
  static void put(std::string& out, T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
    }
  }
};

/// Contiguous sequences of these lengths; document i ends before sequence `documents[i + 1]`.
inline RawIndex raw_index(std::uint8_t dtype, std::int64_t token_bytes, std::vector<std::int32_t> lengths,
                          std::vector<std::int64_t> documents) {
  RawIndex index{.dtype = dtype, .lengths = std::move(lengths), .documents = std::move(documents)};
  std::int64_t place = 0;
  for (const auto length : index.lengths) {
    index.places.push_back(place);
    place += length * token_bytes;
  }
  return index;
}

/// Returns a .bin of these numbers.
template <typename T>
std::string raw_bin(const std::vector<T>& tokens) {
  std::string out;
  for (const auto token : tokens) {
    if constexpr (std::is_integral_v<T>) RawIndex::put(out, token);
    else out.append(reinterpret_cast<const char*>(&token), sizeof(T));
  }
  return out;
}

}  // namespace levada
