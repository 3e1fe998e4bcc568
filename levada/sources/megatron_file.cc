#include "levada/sources/megatron_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/sources/megatron_index.h"
#include "levada/sources/window.h"

namespace levada {
namespace {

constexpr std::uint64_t sample_blocks = 64, sample_bytes = 4096;

/// Of evenly spaced blocks, the first and the last among them: of terabytes, all cannot be read.
std::string sample_digest(const File& bin, std::uint64_t size) {
  Digest digest;
  std::array<char, sample_bytes> block{};
  const auto last = size - std::min(size, sample_bytes);
  for (std::uint64_t i = 0; i < sample_blocks; ++i) {
    // In this order, for the product of both may not fit.
    const auto offset = last / (sample_blocks - 1) * i + last % (sample_blocks - 1) * i / (sample_blocks - 1);
    digest.update(std::string_view(block.data(), read_fully(bin, offset, block)));
  }
  return digest.hex();
}

bool is_integer(DType dtype) {
  return dtype != dtypes::float32 && dtype != dtypes::float64;
}

class MegatronFile final : public TokenFile {
 public:
  MegatronFile(std::shared_ptr<const File> bin, std::shared_ptr<const File> idx, const TokenFileOptions& options)
      : bin_(std::move(bin)), idx_(std::move(idx)), bin_identity_(bin_->identity()), idx_identity_(idx_->identity()) {
    if (options.by_document) document_begins_.push_back(0);
    index_ = read_megatron_index(
        *idx_, *bin_,
        [&](std::int64_t tokens) {
          if (options.by_document) document_begins_.push_back(document_begins_.back() + tokens);
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
        .digest = fmt::format("{} {} {}", index_.digest, bin_identity_.size, sample_digest(*bin_, bin_identity_.size))};
    check();
  }

  const std::string& path() const override { return bin_->path(); }
  const FileContents& contents() const override { return contents_; }
  std::uint64_t index_bytes() const override { return idx_identity_.size; }

  void check() const override {
    expect_unchanged(*idx_, idx_identity_);
    expect_unchanged(*bin_, bin_identity_);
  }

  void read(std::int64_t position, std::int64_t end, TokenWriter& to, ReadState& state) const override {
    // The last token is only a label.
    state.stats.bytes_consumed += static_cast<std::uint64_t>(end - 1 - position) * token_bytes_;
    while (position < end) {
      const auto place = index_.runs.find(position);
      const auto count = std::min(place.tokens, end - position);
      read_run(place.byte, position, count, to, state);
      position += count;
    }
  }

  std::int64_t document_tokens(std::int64_t document) const override {
    const auto* begin = document_begins_.data() + document;
    return begin[1] - begin[0];
  }
  void read_document(std::int64_t document, std::int64_t from, std::int64_t end, TokenWriter& to,
                     ReadState& state) const override {
    const auto begin = document_begins_[static_cast<std::size_t>(document)];
    read(begin + from, begin + end, to, state);
  }

 private:
  /// Tokens that follow each other in the .bin from `byte` on.
  void read_run(std::uint64_t byte, std::int64_t position, std::int64_t count, TokenWriter& to,
                ReadState& state) const {
    const auto behind = byte + static_cast<std::uint64_t>(count) * token_bytes_;
    Window window(*bin_, byte, behind, bin_identity_.size, state.buffer, state.stats);
    while (window.offset() < behind && window.more()) {
      const auto piece = window.here();
      if (!write(piece, to)) fail_negative(piece, position);
      position += static_cast<std::int64_t>(piece.size() / token_bytes_);
      window.advance(piece.size());
    }
  }

  /// False if there are negative numbers among them.
  bool write(std::string_view stored, TokenWriter& to) const {
    const bool is_signed = index_.dtype.code == dtypes::int8.code;
    switch (token_bytes_) {
      case 1: return to.write_stored<std::uint8_t>(stored, is_signed);
      case 2: return to.write_stored<std::uint16_t>(stored, is_signed);
      case 4: return to.write_stored<std::uint32_t>(stored, is_signed);
      default: return to.write_stored<std::uint64_t>(stored, is_signed);
    }
  }

  [[noreturn]] void fail_negative(std::string_view stored, std::int64_t position) const {
    // Little-endian: the sign is in the last byte.
    std::size_t at = 0;
    while (static_cast<signed char>(stored[at + token_bytes_ - 1]) >= 0) at += token_bytes_;
    throw SourceError(fmt::format("{}: token {} is negative: it cannot be fed", path(),
                                  position + static_cast<std::int64_t>(at / token_bytes_)));
  }

  std::shared_ptr<const File> bin_, idx_;
  FileIdentity bin_identity_, idx_identity_;
  MegatronIndex index_;
  std::uint64_t token_bytes_ = 1;
  FileContents contents_;
  std::vector<std::int64_t> document_begins_;  ///< positions, and the end; by_document alone
};

}  // namespace

std::unique_ptr<TokenFile> open_megatron_file(const std::string& path, const TokenFileOptions& options) {
  const auto paths = MegatronPaths::of(path);
  // The .idx first: who replaces a data set takes it away before, so that check() finds out.
  std::shared_ptr<const File> idx = options.open(paths.idx);
  std::shared_ptr<const File> bin = options.open(paths.bin);
  return std::make_unique<MegatronFile>(std::move(bin), std::move(idx), options);
}

}  // namespace levada
