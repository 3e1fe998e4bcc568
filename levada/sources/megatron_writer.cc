#include "levada/sources/megatron_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "levada/base/error.h"
#include "levada/sources/megatron_format.h"

namespace levada {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

void check_absent(const MegatronPaths& paths) {
  for (const auto& path : {paths.bin, paths.idx}) {
    if (is_there(path))
      throw InvalidArgument(fmt::format("{} already exists: choose another name, or overwrite it (--overwrite)", path));
  }
}

MegatronPaths check(const std::string& path, const MegatronWriterOptions& options) {
  const bool is_integer = options.dtype.code <= dtypes::uint8.code && megatron_code(options.dtype);
  if (!is_integer) throw InvalidArgument(fmt::format("{} is not a type of tokens in a .bin", options.dtype.name()));
  auto paths = MegatronPaths::of(path);
  const auto name = std::filesystem::path(paths.bin).stem().string();
  if (name.find_first_not_of('.') == name.npos || name == ".bin") {
    throw InvalidArgument(fmt::format("\"{}\" does not name a data set: choose a name in a folder", path));
  }
  if (!options.overwrite) check_absent(paths);
  return paths;
}

/// Writes numbers in large pieces.
class NumberWriter {
 public:
  explicit NumberWriter(AtomicFile& to) : to_(to) {}
  template <typename T>
  void put(T value) {
    numbers_.put(value);
    if (numbers_.size() >= buffer_bytes) flush();
  }
  void put_text(std::string_view text) {
    for (const char byte : text) put(byte);
  }
  void flush() {
    to_.write(numbers_.view());
    numbers_ = {};
  }

 private:
  AtomicFile& to_;
  ByteWriter numbers_;
};

}  // namespace

std::int64_t max_token(DType dtype) {
  const auto bits = dtype.bits - (dtype.code == dtypes::int8.code ? 1 : 0);
  return bits >= 63 ? std::numeric_limits<std::int64_t>::max() : (std::int64_t{1} << bits) - 1;
}

MegatronWriter::MegatronWriter(const std::string& path, MegatronWriterOptions options)
    : paths_(check(path, options)),
      options_(std::move(options)),
      token_bytes_(options_.dtype.bytes(1)),
      idx_(paths_.idx, options_.write, options_.mode),
      bin_(paths_.bin, options_.write, options_.mode),
      buffer_(buffer_bytes) {}

void MegatronWriter::append(std::span<const std::int64_t> tokens) {
  append_ids(tokens);
}
void MegatronWriter::append(std::span<const std::int32_t> tokens) {
  append_ids(tokens);
}

template <typename Token>
void MegatronWriter::append_ids(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    if (sequence_tokens_ == megatron::max_sequence) end_sequence();
    if (buffered_ == buffer_.size()) flush();
    const auto room = std::min<std::size_t>((buffer_.size() - buffered_) / token_bytes_,
                                            static_cast<std::size_t>(megatron::max_sequence - sequence_tokens_));
    const auto now = tokens.first(std::min(tokens.size(), room));
    if (!store(now) && !options_.masks_loss) throw_out_of_range(now);
    buffered_ += now.size() * token_bytes_;
    sequence_tokens_ += static_cast<std::int64_t>(now.size());
    tokens_ += static_cast<std::int64_t>(now.size());
    tokens = tokens.subspan(now.size());
  }
}

template <typename Token>
void MegatronWriter::throw_out_of_range(std::span<const Token> tokens) const {
  const auto largest = max_token(options_.dtype);
  const auto unfit = std::ranges::find_if(tokens, [&](Token token) { return token < 0 || token > largest; });
  throw InvalidArgument(fmt::format("token {} does not fit in {}, which holds 0 to {}: choose a wider dtype", *unfit,
                                    options_.dtype.name(), largest));
}

template <typename Token>
bool MegatronWriter::store(std::span<const Token> tokens) {
  const auto bits = [&] {
    switch (token_bytes_) {
      case 1: return store_as<std::uint8_t>(tokens);
      case 2: return store_as<std::uint16_t>(tokens);
      case 4: return store_as<std::uint32_t>(tokens);
      default: return store_as<std::uint64_t>(tokens);
    }
  }();
  // The largest token is one less than a power of two, so a negative or too large token has a bit outside of it.
  return (static_cast<std::int64_t>(bits) & ~max_token(options_.dtype)) == 0;
}

template <typename Stored, typename Token>
Token MegatronWriter::store_as(std::span<const Token> tokens) {
  auto* __restrict to = reinterpret_cast<char*>(buffer_.data() + buffered_);
  const auto* __restrict from = tokens.data();
  Token bits = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    bits |= from[i];
    const auto number = static_cast<Stored>(from[i]);
    std::memcpy(to + i * sizeof(Stored), &number, sizeof(Stored));
  }
  return bits;
}

void MegatronWriter::flush() {
  bin_.write(ByteView(buffer_).first(buffered_));
  buffered_ = 0;
}

void MegatronWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(std::exchange(sequence_tokens_, 0)));
}

void MegatronWriter::end_document() {
  if (sequence_tokens_ > 0) end_sequence();
  document_sequences_.push_back(static_cast<std::uint32_t>(lengths_.size() - sequences_before_));
  sequences_before_ = lengths_.size();
}

std::uint64_t MegatronWriter::bytes() const {
  const auto tokens = static_cast<std::uint64_t>(tokens_) * token_bytes_;
  return tokens + megatron::header_bytes + lengths_.size() * 12 + (document_sequences_.size() + 1) * 8;
}

void MegatronWriter::write_index() {
  NumberWriter out(idx_);
  out.put_text(megatron::magic);
  out.put(megatron::version);
  out.put(megatron_code(options_.dtype).value());
  out.put(std::uint64_t{lengths_.size()});
  out.put(std::uint64_t{document_sequences_.size() + 1});
  for (const auto length : lengths_) out.put(length);
  std::int64_t place = 0;
  for (const auto length : lengths_) {
    out.put(place);
    place += length * static_cast<std::int64_t>(token_bytes_);
  }
  std::int64_t sequence = 0;
  out.put(sequence);
  for (const auto sequences : document_sequences_) out.put(sequence += sequences);
  out.flush();
}

void MegatronWriter::finish() {
  if (sequence_tokens_ > 0 || lengths_.size() > sequences_before_) end_document();
  flush();
  bin_.sync();
  write_index();
  idx_.sync();
  if (!options_.overwrite) check_absent(paths_);
  if (is_there(paths_.idx)) {
    std::error_code error;
    std::filesystem::remove(paths_.idx, error);
    if (error) throw SourceError(fmt::format("cannot overwrite {}: {}", paths_.idx, error.message()));
    sync_folder_of(paths_.idx);
  }
  bin_.publish(options_.lasting);
  idx_.publish(options_.lasting);
}

}  // namespace levada
