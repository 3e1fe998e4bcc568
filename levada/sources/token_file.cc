#include "levada/sources/token_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/memory_limits.h"
#include "levada/sources/sampled_digest.h"

namespace levada {
namespace {

/// Enough to make a call cheap against the copy, little enough to stay in a second-level cache; whole tokens.
constexpr std::size_t piece_bytes = std::size_t{256} << 10;

bool is_integer(DType dtype) {
  return dtype != dtypes::float32 && dtype != dtypes::float64;
}

/// Throws InvalidArgument where there is no memory for `begins`, which is full, to double: old and new are both held.
void expect_room_to_grow(const std::vector<std::int64_t>& begins, const std::string& path) {
  constexpr std::size_t small = std::size_t{1} << 17;  // The limits take up to a millisecond to read.
  if (begins.size() < small) return;
  expect_memory(2 * begins.size() * sizeof(begins.front()), memory_limits(), "the table of documents of " + path,
                ", or cut documents instead of packing them");
}

}  // namespace

TokenFile::TokenFile(const std::string& path, const TokenFileOptions& options)
    : idx_(options.open(MegatronPaths::of(path).idx)),
      bin_(options.open(MegatronPaths::of(path).bin)),
      idx_identity_(idx_->identity()),
      bin_identity_(bin_->identity()) {
  if (options.by_document) document_begins_.push_back(0);
  index_ = read_megatron_index(
      *idx_, *bin_,
      [&](std::int64_t tokens) {
        if (!options.by_document) return;
        if (document_begins_.size() == document_begins_.capacity()) expect_room_to_grow(document_begins_, path);
        document_begins_.push_back(document_begins_.back() + tokens);
      },
      [&](std::uint64_t done) {
        if (options.progress) options.progress({idx_->path(), done, idx_identity_.size});
      });
  if (!is_integer(index_.dtype)) {
    throw SourceError(fmt::format("{} holds {} numbers, and tokens are integers: it cannot be fed", bin_->path(),
                                  index_.dtype.name()));
  }
  token_bytes_ = index_.dtype.bytes(1);
  contents_ = {
      .tokens = index_.tokens(),
      .documents = index_.documents,
      .digest = fmt::format("{} {} {}", index_.digest, bin_identity_.size, sampled_digest(*bin_, bin_identity_.size))};
  check();
}

void TokenFile::check() const {
  expect_unchanged(*idx_, idx_identity_);
  expect_unchanged(*bin_, bin_identity_);
}

void TokenFile::read(std::int64_t begin, std::int64_t end, TokenWriter& to, ReadState& state) const {
  // The last token is only a label.
  state.stats.bytes_consumed += static_cast<std::uint64_t>(end - 1 - begin) * token_bytes_;
  while (begin < end) {
    const auto place = index_.runs.find(begin);
    const auto count = std::min(place.tokens, end - begin);
    read_run(place.byte, begin, count, to, state);
    begin += count;
  }
}

/// Tokens that follow each other in the .bin from `byte` on.
void TokenFile::read_run(std::uint64_t byte, std::int64_t position, std::int64_t count, TokenWriter& to,
                         ReadState& state) const {
  const auto end = byte + static_cast<std::uint64_t>(count) * token_bytes_;
  state.buffer.resize(piece_bytes);
  while (byte < end) {
    const auto piece = std::span(state.buffer).first(std::min<std::uint64_t>(piece_bytes, end - byte));
    const auto got = read_fully(*bin_, byte, piece);
    state.stats.bytes_read += got;
    if (got < piece.size()) {
      throw SourceError(fmt::format("{} ends at byte {}, {} bytes short: it was cut off while it was being read",
                                    path(), byte + got, bin_identity_.size - byte - got));
    }
    if (!write({piece.data(), got}, to)) fail_negative({piece.data(), got}, position);
    position += static_cast<std::int64_t>(got / token_bytes_);
    byte += got;
  }
}

/// False if there are negative numbers among them.
bool TokenFile::write(std::string_view stored, TokenWriter& to) const {
  const bool is_signed = index_.dtype.code == dtypes::int8.code;
  switch (token_bytes_) {
    case 1: return to.write_stored<std::uint8_t>(stored, is_signed);
    case 2: return to.write_stored<std::uint16_t>(stored, is_signed);
    case 4: return to.write_stored<std::uint32_t>(stored, is_signed);
    default: return to.write_stored<std::uint64_t>(stored, is_signed);
  }
}

void TokenFile::fail_negative(std::string_view stored, std::int64_t position) const {
  // Little-endian: the sign is in the last byte.
  std::size_t at = 0;
  while (static_cast<signed char>(stored[at + token_bytes_ - 1]) >= 0) at += token_bytes_;
  throw SourceError(fmt::format("{}: token {} is negative: it cannot be fed", path(),
                                position + static_cast<std::int64_t>(at / token_bytes_)));
}

}  // namespace levada
