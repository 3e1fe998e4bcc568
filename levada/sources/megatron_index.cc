#include "levada/sources/megatron_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/urls.h"
#include "levada/sources/megatron_format.h"

namespace levada {
namespace {

using megatron::dtype_codes, megatron::header_bytes;

/// Reads an .idx, and names it in every exception.
class IndexReader {
 public:
  IndexReader(const File& file, std::function<void(std::uint64_t)> on_progress)
      : file_(file), on_progress_(std::move(on_progress)), size_(file.identity().size) {}

  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return size_; }

  [[noreturn]] void fail(const std::string& what) const { throw SourceError(fmt::format("{}: {}", path(), what)); }

  void will_read(std::uint64_t offset, std::uint64_t bytes) const { file_.will_read(offset, bytes); }
  void read(std::uint64_t offset, std::span<char> into) {
    const auto got = read_fully(file_, offset, into);
    if (got < into.size()) {
      fail(fmt::format("it ends at byte {}, {} bytes short: it was cut off while it was being read", offset + got,
                       into.size() - got));
    }
    done_ += got;
    if (on_progress_) on_progress_(done_);
  }

 private:
  const File& file_;
  const std::function<void(std::uint64_t)> on_progress_;
  std::uint64_t size_, done_ = 0;
};

[[noreturn]] void fail_changed(const IndexReader& in) {
  in.fail("it has changed since it was read");
}

/// One of the arrays in the file, read sequentially in pieces.
template <typename T>
class ArrayReader {
 public:
  ArrayReader(IndexReader& in, std::uint64_t offset, std::uint64_t count)
      : in_(in), offset_(offset), left_(count), piece_(std::min<std::uint64_t>(count, piece_items)) {
    in.will_read(offset, count * sizeof(T));
  }

  /// Returns the next item, which must exist.
  T next() {
    if (at_ == held_) refill();
    return piece_[at_++];
  }
  /// Skips the remaining items.
  void drain() {
    while (left_ > 0) refill();
  }
  std::string digest() const { return digest_.hex(); }

 private:
  static constexpr std::size_t piece_items = std::size_t{32} << 10;

  void refill() {
    held_ = std::min<std::uint64_t>(left_, piece_.size());
    const auto bytes = std::as_writable_bytes(std::span(piece_).first(held_));
    in_.read(offset_, {reinterpret_cast<char*>(bytes.data()), bytes.size()});
    digest_.update(bytes);
    offset_ += bytes.size();
    left_ -= held_;
    at_ = 0;
  }

  IndexReader& in_;
  std::uint64_t offset_, left_;
  std::vector<T> piece_;
  std::size_t at_ = 0, held_ = 0;
  Digest digest_;
};

struct Header {
  DType dtype;
  std::uint64_t sequences = 0, document_indices = 0;
  bool has_modes = false;

  std::uint64_t places_offset() const { return header_bytes + sequences * 4; }
  std::uint64_t documents_offset() const { return places_offset() + sequences * 8; }
  std::uint64_t modes_offset() const { return documents_offset() + document_indices * 8; }
};

/// Returns the size of everything before the modes, or nothing on overflow.
std::optional<std::uint64_t> bytes_claimed(const Header& header) {
  const auto sequences = checked_mul(header.sequences, 12), documents = checked_mul(header.document_indices, 8);
  if (!sequences || !documents) return std::nullopt;
  const auto arrays = checked_add(*sequences, *documents);
  return arrays ? checked_add(*arrays, header_bytes) : std::nullopt;
}

Header header_of(const MegatronIndex& index) {
  return {.dtype = index.dtype,
          .sequences = static_cast<std::uint64_t>(index.sequences),
          .document_indices = static_cast<std::uint64_t>(index.documents) + 1,
          .has_modes = index.has_modes};
}

/// Checks the size of the file against its header, and determines from the size whether there are modes.
void check_size(const IndexReader& in, Header& header) {
  const auto claimed = bytes_claimed(header);
  if (!claimed || *claimed > in.size()) {
    in.fail(
        fmt::format("it claims {} sequences and {} document indices, which do not fit in its {} bytes: it is cut "
                    "short or damaged",
                    header.sequences, header.document_indices, in.size()));
  }
  const auto behind = in.size() - *claimed;
  header.has_modes = behind == header.sequences && behind > 0;
  if (behind > 0 && !header.has_modes) {
    in.fail(fmt::format("{} bytes follow its arrays, which are not the modes of its {} sequences: it is damaged",
                        behind, header.sequences));
  }
  if (header.document_indices == 0) in.fail("it has no document indices, but even an empty data set has one");
}

Header read_header(IndexReader& in) {
  std::array<char, header_bytes> bytes{};
  const auto size = std::min<std::uint64_t>(in.size(), bytes.size());
  in.read(0, std::span(bytes).first(size));
  const std::string_view text(bytes.data(), size);
  if (text.substr(0, megatron::magic.size()) != megatron::magic.substr(0, size) || size == 0) {
    in.fail("it does not begin like an .idx of Megatron-LM");
  }
  if (size < header_bytes) in.fail(fmt::format("it ends at byte {}, within its header: it is cut short", size));
  ByteReader fields(as_bytes(text).subspan(megatron::magic.size()));
  if (const auto version = fields.get<std::uint64_t>(); version != megatron::version) {
    in.fail(fmt::format("it has version {}; version {} can be read", version, megatron::version));
  }
  const auto code = fields.get<std::uint8_t>();
  const auto dtype = megatron_dtype(code);
  if (!dtype) in.fail(fmt::format("its dtype has the number {}; there are 1 to {}", code, dtype_codes.size()));
  Header header{.dtype = *dtype};
  header.sequences = fields.get<std::uint64_t>();
  header.document_indices = fields.get<std::uint64_t>();
  check_size(in, header);
  return header;
}

/// Walks through the arrays in step.
class IndexPass {
 public:
  IndexPass(IndexReader& in, const Header& header, const File& bin)
      : in_(in),
        header_(header),
        bin_(bin),
        bin_bytes_(bin.identity().size),
        lengths_(in, header_bytes, header.sequences),
        places_(in, header.places_offset(), header.sequences),
        documents_(in, header.documents_offset(), header.document_indices),
        modes_(in, header.modes_offset(), header.has_modes ? header.sequences : 0),
        token_bytes_(header.dtype.bytes(1)),
        runs_(token_bytes_) {}

  void run(const IndexCallbacks& callbacks) {
    if (const auto first = documents_.next(); first != 0) {
      in_.fail(fmt::format("its first document begins with sequence {} and not 0", first));
    }
    for (std::uint64_t document = 1; document < header_.document_indices; ++document) {
      const auto end = document_end(document);
      const auto before = runs_.tokens();
      while (sequence_ < end) {
        pass_sequence();
        if (!in_order_ && runs_.bytes() >= announced_runs_) announce_runs(callbacks);
      }
      if (callbacks.on_document) callbacks.on_document(runs_.tokens() - before);
    }
    if (sequence_ < header_.sequences) {
      in_.fail(fmt::format("its documents end at sequence {}, and it has {}", sequence_, header_.sequences));
    }
    modes_.drain();
    // If sequences may be anywhere, bytes outside of all sequences may have been left out on purpose.
    if (in_order_ && expected_place_ != bin_bytes_) {
      throw SourceError(fmt::format("{} has {} bytes, but {} describes {}: they do not belong together", bin_.path(),
                                    bin_bytes_, in_.path(), expected_place_));
    }
  }

  TokenRuns take_runs() { return std::move(runs_); }
  bool in_order() const { return in_order_; }
  std::string digest() const {
    Digest all;
    all.update(fmt::format("{} {} {};{};{};{};{}", header_.dtype.name(), header_.sequences, header_.document_indices,
                           lengths_.digest(), places_.digest(), documents_.digest(), modes_.digest()));
    return all.hex();
  }

 private:
  void announce_runs(const IndexCallbacks& callbacks) {
    if (callbacks.on_more_runs) callbacks.on_more_runs(runs_step);
    announced_runs_ += runs_step;
  }

  std::uint64_t document_end(std::uint64_t document) {
    const auto end = documents_.next();
    if (end < 0 || static_cast<std::uint64_t>(end) < sequence_ || static_cast<std::uint64_t>(end) > header_.sequences) {
      in_.fail(fmt::format("document {} begins with sequence {} and ends before sequence {}, of {} in all",
                           document - 1, sequence_, end, header_.sequences));
    }
    return static_cast<std::uint64_t>(end);
  }

  void pass_sequence() {
    const auto length = lengths_.next();
    const auto place = places_.next();
    if (length < 0) in_.fail(fmt::format("sequence {} has a length of {} tokens", sequence_, length));
    if (place < 0) in_.fail(fmt::format("sequence {} begins at byte {}", sequence_, place));
    const auto begin = static_cast<std::uint64_t>(place);
    const auto bytes = static_cast<std::uint64_t>(length) * token_bytes_;
    if (begin > bin_bytes_ || bytes > bin_bytes_ - begin) {
      in_.fail(
          fmt::format("sequence {} begins at byte {} and has {} tokens, but {} has only {} bytes: that is cut "
                      "short, or belongs to another .idx",
                      sequence_, begin, length, bin_.path(), bin_bytes_));
    }
    // Sequences may overlap, so the .bin's size does not bound their sum.
    if (runs_.tokens() > std::numeric_limits<std::int64_t>::max() - length) in_.fail("it claims more than 2^63 tokens");
    in_order_ = in_order_ && begin == expected_place_;
    expected_place_ = begin + bytes;
    runs_.add(begin, length);
    ++sequence_;
  }

  static constexpr std::uint64_t runs_step = std::uint64_t{16} << 20;

  IndexReader& in_;
  const Header& header_;
  const File& bin_;
  std::uint64_t bin_bytes_;
  ArrayReader<std::int32_t> lengths_;
  ArrayReader<std::int64_t> places_, documents_;
  ArrayReader<std::int8_t> modes_;
  std::uint64_t token_bytes_;
  TokenRuns runs_;
  std::uint64_t announced_runs_ = std::uint64_t{1} << 20;  ///< bytes; smaller amounts are not worth an announcement
  std::uint64_t sequence_ = 0, expected_place_ = 0;
  bool in_order_ = true;  ///< whether each sequence so far begins at the end of the previous one
};

}  // namespace

MegatronPaths MegatronPaths::of(const std::string& path) {
  const auto name = without_query(path);
  const bool has_extension = name.ends_with(".bin") || name.ends_with(".idx");
  const std::string prefix(name.substr(0, name.size() - (has_extension ? 4 : 0))), query(path.substr(name.size()));
  return {prefix + ".bin" + query, prefix + ".idx" + query};
}

bool is_token_file(const std::string& path, const std::function<std::unique_ptr<File>(const std::string&)>& open) {
  const auto paths = MegatronPaths::of(path);
  const auto is_there = [&](const std::string& name) {
    std::error_code error;
    if (!is_url(path)) return std::filesystem::exists(name, error);
    if (name == paths.bin) return false;
    try {
      return open(name) != nullptr;
    } catch (const StorageFault& fault) {
      if (fault.error() != ENOENT) throw;
      return false;
    }
  };
  return path == paths.bin || path == paths.idx || is_there(paths.bin) || is_there(paths.idx);
}

std::optional<std::uint8_t> megatron_code(DType dtype) {
  const auto* found = std::ranges::find(dtype_codes, dtype);
  if (found == dtype_codes.end()) return std::nullopt;
  return static_cast<std::uint8_t>(found - dtype_codes.begin() + 1);
}

std::optional<DType> megatron_dtype(std::uint8_t code) {
  if (code < 1 || code > dtype_codes.size()) return std::nullopt;
  return dtype_codes[code - 1U];
}

MegatronIndex read_megatron_index(const File& idx, const File& bin, const IndexCallbacks& callbacks) {
  const auto identity = idx.identity();
  IndexReader in(idx, callbacks.on_progress);
  const auto header = read_header(in);
  IndexPass pass(in, header, bin);
  pass.run(callbacks);
  expect_unchanged(idx, identity);
  return {.dtype = header.dtype,
          .sequences = static_cast<std::int64_t>(header.sequences),
          .documents = static_cast<std::int64_t>(header.document_indices) - 1,
          .has_modes = header.has_modes,
          .in_order = pass.in_order(),
          .runs = pass.take_runs(),
          .digest = pass.digest()};
}

void read_documents(const File& idx, const MegatronIndex& index, const IndexCallbacks& callbacks) {
  IndexReader in(idx, callbacks.on_progress);
  const auto header = header_of(index);
  ArrayReader<std::int32_t> lengths(in, header_bytes, header.sequences);
  ArrayReader<std::int64_t> documents(in, header.documents_offset(), header.document_indices);
  std::int64_t sequence = documents.next(), left = index.tokens();
  for (std::int64_t document = 0; document < index.documents; ++document) {
    std::int64_t tokens = 0;
    const auto end = documents.next();
    if (sequence < 0 || end < sequence || end > index.sequences) fail_changed(in);
    for (; sequence < end; ++sequence) {
      const auto length = lengths.next();
      if (length < 0 || length > left) fail_changed(in);
      tokens += length;
      left -= length;
    }
    callbacks.on_document(tokens);
  }
  if (left != 0 || sequence != index.sequences) fail_changed(in);
}

std::optional<std::uint64_t> index_bytes_of(const MegatronIndex& index) {
  if (index.sequences < 0 || index.documents < 0) return std::nullopt;
  const auto header = header_of(index);
  const auto arrays = bytes_claimed(header);
  return arrays ? checked_add(*arrays, header.has_modes ? header.sequences : 0) : std::nullopt;
}

std::int64_t tokens_before(const File& idx, const MegatronIndex& index, std::int64_t document) {
  const auto header = header_of(index);
  IndexReader in(idx, {});
  const auto number_at = [&](std::uint64_t offset, std::int64_t number) {
    std::int64_t value = 0;
    in.read(offset + static_cast<std::uint64_t>(number) * sizeof(value),
            {reinterpret_cast<char*>(&value), sizeof(value)});
    return value;
  };
  const auto sequence = number_at(header.documents_offset(), document);
  if (sequence == index.sequences) return index.tokens();
  const auto place = sequence < 0 || sequence > index.sequences ? -1 : number_at(header.places_offset(), sequence);
  const auto tokens = place / static_cast<std::int64_t>(index.dtype.bytes(1));
  if (place < 0 || tokens > index.tokens()) fail_changed(in);
  return tokens;
}

}  // namespace levada
