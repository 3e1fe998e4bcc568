#include "levada/tokens/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/sources/content_watch.h"

namespace levada {
namespace {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;

class StoredStream final : public ByteStream {
 public:
  explicit StoredStream(std::shared_ptr<const File> file) : file_(std::move(file)), watch_(*file_) {
    file_->will_read(0, watch_.size());
  }

  std::size_t read(std::span<char> into) override {
    const auto got = file_->read(offset_, into);
    offset_ += got;
    if (got == 0) watch_.expect_unchanged();
    return got;
  }
  std::uint64_t stored_bytes() const override { return offset_; }

 private:
  std::shared_ptr<const File> file_;
  ContentWatch watch_;
  std::uint64_t offset_ = 0;
};

/// The part that all decompressors share: reads stored bytes in pieces.
class Decompressor : public ByteStream {
 public:
  explicit Decompressor(std::shared_ptr<const File> file)
      : path_(file->path()), stored_(std::move(file)), input_(piece_bytes) {}

  std::size_t read(std::span<char> into) final {
    while (true) {
      // Decompresses even if no stored bytes are left, because the decompressor may hold more output.
      if (!held_.empty() || !is_between_members()) {
        if (const auto made = decompress(held_, into); made > 0) {
          has_content_ = true;
          return made;
        }
      }
      if (!held_.empty() || refill()) continue;
      if (is_between_members()) return 0;
      throw SourceError(fmt::format("{} ends too early: it has been cut off, so fetch it again", path_));
    }
  }
  std::uint64_t stored_bytes() const final { return stored_.stored_bytes(); }

 protected:
  /// Consumes the front of `from`, fills the front of `into` and returns the number of bytes written.
  virtual std::size_t decompress(std::span<char>& from, std::span<char> into) = 0;
  virtual bool is_between_members() const = 0;

  /// `has_header`: whether the fault is after the header of a member.
  [[noreturn]] void fail(std::string_view why, bool has_header) const {
    throw SourceError(fmt::format(
        "{} is damaged near byte {}: {}; {}", path_, stored_bytes() - held_.size(), why,
        has_header || has_content_ ? "fetch it again" : "rename it if it is not compressed, or fetch it again"));
  }
  const std::string& path() const { return path_; }

 private:
  bool refill() {
    held_ = std::span(input_).first(stored_.read(input_));
    return !held_.empty();
  }

  std::string path_;
  StoredStream stored_;
  std::vector<char> input_;
  std::span<char> held_;
  bool has_content_ = false;
};

class GzipStream final : public Decompressor {
 public:
  explicit GzipStream(std::shared_ptr<const File> file) : Decompressor(std::move(file)) {
    constexpr int gzip_alone = 16 + MAX_WBITS;
    if (::inflateInit2(&state_, gzip_alone) != Z_OK) throw SourceError("there is not enough memory to decompress");
  }
  ~GzipStream() override { ::inflateEnd(&state_); }

 private:
  std::size_t decompress(std::span<char>& from, std::span<char> into) override {
    if (is_between_members_) {
      // Tapes and block devices pad a file with zeros.
      from = from.subspan(
          static_cast<std::size_t>(std::ranges::find_if(from, [](char c) { return c != 0; }) - from.begin()));
      if (from.empty()) return 0;
      ::inflateReset(&state_);
      is_between_members_ = false;
    }
    state_.next_in = reinterpret_cast<Bytef*>(from.data());
    state_.avail_in = static_cast<uInt>(from.size());
    state_.next_out = reinterpret_cast<Bytef*>(into.data());
    const auto room = static_cast<uInt>(std::min<std::size_t>(into.size(), std::size_t{1} << 30));
    state_.avail_out = room;
    const int status = ::inflate(&state_, Z_NO_FLUSH);
    from = from.last(state_.avail_in);
    if (status == Z_STREAM_END) is_between_members_ = true;
    else if (status != Z_OK && status != Z_BUF_ERROR) {
      const std::string_view why = state_.msg != nullptr ? state_.msg : "it is not gzip";
      fail(why, why != "incorrect header check");
    }
    return room - state_.avail_out;
  }
  bool is_between_members() const override { return is_between_members_; }

  z_stream state_{};
  bool is_between_members_ = false;
};

class ZstdStream final : public Decompressor {
 public:
  ZstdStream(std::shared_ptr<const File> file, std::shared_ptr<MemoryClaims> memory)
      : Decompressor(std::move(file)), state_(::ZSTD_createDCtx()), memory_(std::move(memory)), claim_(*memory_) {
    if (!state_) throw SourceError("there is not enough memory to decompress");
    // Archives are published with windows of up to 2 GiB (zstd --long=31). Only the used part of one is ever touched.
    ::ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* state) const { ::ZSTD_freeDCtx(state); }
  };

  std::size_t decompress(std::span<char>& from, std::span<char> into) override {
    ZSTD_inBuffer in{from.data(), from.size(), 0};
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    const auto hint = ::ZSTD_decompressStream(state_.get(), &out, &in);
    from = from.subspan(in.pos);
    if (::ZSTD_getErrorCode(hint) == ZSTD_error_memory_allocation) {
      throw SourceError(
          fmt::format("there is not enough memory for the window of {}: compress the file without --long", path()));
    }
    if (::ZSTD_isError(hint) != 0) {
      fail(::ZSTD_getErrorName(hint), ::ZSTD_getErrorCode(hint) != ZSTD_error_prefix_unknown);
    }
    claim_window();
    is_between_members_ = hint == 0;
    return out.pos;
  }
  bool is_between_members() const override { return is_between_members_; }

  /// A frame states its window, which is allocated at its start and fills as the content is decompressed.
  void claim_window() {
    const auto bytes = static_cast<std::uint64_t>(::ZSTD_sizeof_DCtx(state_.get()));
    if (bytes <= claimed_) return;
    claim_.add(bytes - std::exchange(claimed_, bytes), fmt::format("the window of {}", path()),
               ", or compress the file without --long");
  }

  std::unique_ptr<ZSTD_DCtx, Free> state_;
  std::shared_ptr<MemoryClaims> memory_;
  MemoryClaims::Claim claim_;
  std::uint64_t claimed_ = 0;
  bool is_between_members_ = false;
};

/// Skips a byte order mark at the start.
class TextStream final : public ByteStream {
 public:
  explicit TextStream(std::unique_ptr<ByteStream> of) : of_(std::move(of)) {}

  std::size_t read(std::span<char> into) override {
    if (!has_begun_) begin();
    if (front_.empty()) return of_->read(into);
    const auto count = std::min(front_.size(), into.size());
    std::memcpy(into.data(), front_.data(), count);
    front_.erase(0, count);
    return count;
  }
  std::uint64_t stored_bytes() const override { return of_->stored_bytes(); }

 private:
  void begin() {
    constexpr std::string_view mark = "\xef\xbb\xbf";
    has_begun_ = true;
    front_.resize(mark.size());
    std::size_t held = 0;
    while (held < mark.size()) {
      const auto got = of_->read(std::span(front_).subspan(held));
      if (got == 0) break;
      held += got;
    }
    front_.resize(held);
    if (front_ == mark) front_.clear();
  }

  std::unique_ptr<ByteStream> of_;
  std::string front_;
  bool has_begun_ = false;
};

std::unique_ptr<ByteStream> open_stored(std::shared_ptr<const File> file, Compression compression,
                                        std::shared_ptr<MemoryClaims> memory) {
  switch (compression) {
    case Compression::gzip: return std::make_unique<GzipStream>(std::move(file));
    case Compression::zstd: return std::make_unique<ZstdStream>(std::move(file), std::move(memory));
    default: return std::make_unique<StoredStream>(std::move(file));
  }
}

}  // namespace

Compression compression_of(const std::string& path, std::string* rest) {
  constexpr std::pair<std::string_view, Compression> known[] = {{".gz", Compression::gzip},
                                                                {".zst", Compression::zstd}};
  for (const auto& [extension, compression] : known) {
    if (!path.ends_with(extension)) continue;
    if (rest != nullptr) *rest = path.substr(0, path.size() - extension.size());
    return compression;
  }
  if (rest != nullptr) *rest = path;
  return Compression::none;
}

std::unique_ptr<ByteStream> open_stream(std::shared_ptr<const File> file, Compression compression,
                                        std::shared_ptr<MemoryClaims> memory) {
  return std::make_unique<TextStream>(open_stored(std::move(file), compression, std::move(memory)));
}

}  // namespace levada
