#include "levada/sources/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/hash.h"

namespace levada {
namespace {

/// Large relative to the cost of a call, small enough to stay in the second-level cache; whole tokens.
constexpr std::size_t piece_bytes = std::size_t{256} << 10;

bool is_integer(DType dtype) {
  return dtype != dtypes::float32 && dtype != dtypes::float64;
}

}  // namespace

std::int64_t share_of_documents(double share, std::int64_t documents, std::string_view digest) {
  constexpr std::int64_t many = 1000;
  const double exact = share * static_cast<double>(documents);
  if (documents >= many) return std::lrint(exact);
  const double chance = static_cast<double>(hash64(as_bytes(digest)) >> 11) * 0x1p-53;
  return std::min(static_cast<std::int64_t>(std::floor(exact + chance)), documents);
}

TokenFile::TokenFile(const std::string& path, const TokenFileOptions& options)
    : TokenFile(path, options, options.open(MegatronPaths::of(path).idx)) {}

// The .idx is opened first: a writer that replaces a pair removes its .idx first.
TokenFile::TokenFile(const std::string& path, const TokenFileOptions& options, std::unique_ptr<const File> idx)
    : idx_(std::move(idx)),
      idx_identity_(idx_->identity()),
      bin_(options.open(MegatronPaths::of(path).bin)),
      watch_(*bin_),
      masks_loss_(options.masks_loss),
      vocabulary_(options.vocabulary) {
  auto known = options.known_indexes ? options.known_indexes->find(*idx_, *bin_) : std::nullopt;
  if (known) {
    index_ = std::move(*known);
  } else {
    read_index(options);
    if (options.known_indexes) options.known_indexes->add(*idx_, idx_identity_, *bin_, index_);
  }
  if (!is_integer(index_.dtype)) {
    throw SourceError(fmt::format("{} holds {} numbers, and tokens are integers: it cannot be fed", bin_->path(),
                                  index_.dtype.name()));
  }
  if (masks_loss_ && index_.dtype != dtypes::int32) {
    throw SourceError(
        fmt::format("{} holds {} numbers instead of int32 with a loss mask", bin_->path(), index_.dtype.name()));
  }
  token_bytes_ = index_.dtype.bytes(1);
  contents_ = {.tokens = index_.tokens(),
               .documents = index_.documents,
               .stored_documents = index_.documents,
               .digest = fmt::format("{} {} {}", index_.digest, watch_.size(), watch_.sampled())};
  if (options.documents.begin > 0 || options.documents.end < 1) keep_share(options.documents);
  expect_unchanged(*idx_, idx_identity_);  // so both files are of one pair, also if the .idx was known
  check();
}

void TokenFile::read_index(const TokenFileOptions& options) {
  index_bytes_ = idx_identity_.size;
  MemoryClaims::Claim runs(*options.memory);
  IndexCallbacks callbacks;
  std::uint64_t growing = 0;
  callbacks.on_more_runs = [&](std::uint64_t bytes) {
    runs.settle(std::exchange(growing, bytes));
    runs.add(bytes, fmt::format("the next part of the table of sequences of {}, which are not in storage order,",
                                idx_->path()));
  };
  callbacks.on_progress = [&](std::uint64_t done) {
    if (options.progress) options.progress({idx_->path(), done, index_bytes_});
  };
  index_ = read_megatron_index(*idx_, *bin_, callbacks);
}

/// Restricts the file to the documents in `share`.
void TokenFile::keep_share(const DocumentShare& share) {
  const auto begin = share_of_documents(share.begin, index_.documents, contents_.digest);
  const auto end = share_of_documents(share.end, index_.documents, contents_.digest);
  std::int64_t before_begin = 0, before_end = 0;
  if (index_.in_order) {
    before_begin = tokens_before(*idx_, index_, begin);
    before_end = tokens_before(*idx_, index_, end);
  } else {
    std::int64_t document = 0;
    visit_documents([&](std::int64_t tokens) {
      if (document < begin) before_begin += tokens;
      if (document++ < end) before_end += tokens;
    });
  }
  first_document_ = begin;
  first_token_ = before_begin;
  contents_.documents = end - begin;
  contents_.tokens = before_end - before_begin;
}

void TokenFile::visit_documents(const std::function<void(std::int64_t tokens)>& visit,
                                const std::function<void(const PrepareProgress&)>& progress) const {
  auto document = -first_document_;
  read_documents(*idx_, index_,
                 {.on_document =
                      [&](std::int64_t tokens) {
                        if (document >= 0 && document < contents_.documents) visit(tokens);
                        ++document;
                      },
                  .on_progress =
                      [&](std::uint64_t done) {
                        if (progress) progress({idx_->path(), done, idx_identity_.size});
                      }});
  expect_unchanged(*idx_, idx_identity_);
}

void TokenFile::will_read(std::int64_t begin, std::int64_t end) const {
  begin += first_token_;
  end += first_token_;
  while (begin < end) {
    const auto place = index_.runs.find(begin);
    const auto count = std::min(place.tokens, end - begin);
    bin_->will_read(place.byte, static_cast<std::uint64_t>(count) * token_bytes_);
    begin += count;
  }
}

void TokenFile::read(std::int64_t begin, std::int64_t end, TokenWriter& to, ReadState& state) const {
  // The last token is only a label.
  state.stats.bytes_consumed += static_cast<std::uint64_t>(end - 1 - begin) * token_bytes_;
  begin += first_token_;
  end += first_token_;
  while (begin < end) {
    const auto place = index_.runs.find(begin);
    const auto count = std::min(place.tokens, end - begin);
    read_run(place.byte, begin, count, to, state);
    begin += count;
  }
}

/// Reads tokens that are contiguous in the .bin, from `byte` on.
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
                                    path(), byte + got, watch_.size() - byte - got));
    }
    if (!write({piece.data(), got}, to)) fail_no_id({piece.data(), got}, position, to.largest());
    if (vocabulary_ > 0) expect_in_vocabulary({piece.data(), got}, position);
    position += static_cast<std::int64_t>(got / token_bytes_);
    byte += got;
  }
}

/// Returns false if some of the numbers are not ids.
bool TokenFile::write(std::string_view stored, TokenWriter& to) const {
  if (masks_loss_) {
    to.write_masked(stored);
    return true;
  }
  const bool is_signed = index_.dtype.code == dtypes::int8.code;
  switch (token_bytes_) {
    case 1: return to.write_stored<std::uint8_t>(stored, is_signed);
    case 2: return to.write_stored<std::uint16_t>(stored, is_signed);
    case 4: return to.write_stored<std::uint32_t>(stored, is_signed);
    default: return to.write_stored<std::uint64_t>(stored, is_signed);
  }
}

/// Throws SourceError for an id outside the vocabulary. All numbers must be ids.
void TokenFile::expect_in_vocabulary(std::string_view stored, std::int64_t position) const {
  const auto expect = [&]<typename Unsigned>(std::type_identity<Unsigned>) {
    const auto load = [&](std::size_t i) {
      Unsigned token;
      std::memcpy(&token, stored.data() + i * sizeof(token), sizeof(token));
      return token;
    };
    const auto count = stored.size() / sizeof(Unsigned);
    Unsigned largest = 0;
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, load(i));
    if (largest < static_cast<std::uint64_t>(vocabulary_)) return;
    std::size_t at = 0;
    while (load(at) < static_cast<std::uint64_t>(vocabulary_)) ++at;
    throw SourceError(fmt::format(
        "{}: token {} is {}, but the tokenizer has {} tokens: name the one that the file was made with (--tokenizer, "
        "tokenizer=)",
        path(), position + static_cast<std::int64_t>(at), load(at), vocabulary_));
  };
  switch (token_bytes_) {
    case 1: return expect(std::type_identity<std::uint8_t>{});
    case 2: return expect(std::type_identity<std::uint16_t>{});
    case 4: return expect(std::type_identity<std::uint32_t>{});
    default: return expect(std::type_identity<std::uint64_t>{});
  }
}

void TokenFile::fail_no_id(std::string_view stored, std::int64_t position, std::int64_t largest) const {
  for (std::size_t at = 0;; at += token_bytes_, ++position) {
    // Little-endian: the sign is in the last byte.
    const auto last = static_cast<signed char>(stored[at + token_bytes_ - 1]);
    if (last < 0)
      throw SourceError(fmt::format("{}: token {} is negative, and cannot be fed: write the file again without it",
                                    path(), position));
    if (token_bytes_ < sizeof(std::int64_t)) continue;  // The others fit in any id.
    std::int64_t token = 0;
    std::memcpy(&token, stored.data() + at, sizeof(token));
    if (token <= largest) continue;
    throw SourceError(fmt::format("{}: token {} is {}, more than int32 holds: use int64 ids (dtype=, --dtype)", path(),
                                  position, token));
  }
}

}  // namespace levada
