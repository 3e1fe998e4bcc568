#include "levada/corpus/packed_order.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "levada/corpus/packing.h"

namespace levada {
namespace {

/// A block holds, for a window with N samples, N + 1 numbers of 32 bits, where each sample's pieces start and where
/// they end, and then the pieces: a start of 64 bits and a length of 32 bits each.
constexpr std::uint64_t start_bytes = 4, piece_bytes = 12;
constexpr std::uint64_t window_bytes = 24;
/// Bytes after the table in a file: key, digest of the table, three counts, the number of windows and the form.
constexpr std::uint64_t digest_bytes = 32, trailer_bytes = 2 * digest_bytes + 4 * 8 + 8;
constexpr std::uint64_t file_form = 1;

/// Fills `into`. Returns why that failed, or nothing.
std::optional<std::string> read_at(int fd, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto got = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fmt::format("cannot be read: {}", std::strerror(errno));
    if (got == 0) return "was cut short";
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return std::nullopt;
}

Bytes encode(std::span<const std::uint32_t> starts, std::span<const PackedPiece> pieces) {
  ByteWriter block;
  for (const auto start : starts) block.put(start);
  for (const auto& piece : pieces) {
    block.put(piece.begin);
    block.put(static_cast<std::uint32_t>(piece.positions));
  }
  return std::move(block).take();
}

/// The remainders of a window's documents, and the bins that they share.
struct PackedRemainders {
  std::vector<std::uint32_t> documents;  ///< documents of the remainders, ascending
  std::vector<std::int64_t> lengths;     ///< lengths of the remainders, rounded up
  BinPacking packing;
  std::vector<std::uint32_t> members;  ///< documents, bin by bin, ascending in each
  std::vector<std::size_t> begins;     ///< start of each bin's members, and the end
  std::vector<std::int64_t> filled;    ///< positions used in each bin

  void pack(std::int64_t capacity, std::int64_t max_pieces) {
    packing = pack_best_fit(lengths, capacity, max_pieces);
    begins.assign(packing.bins + 1, 0);
    filled.assign(packing.bins, 0);
    for (std::size_t i = 0; i < documents.size(); ++i) {
      ++begins[packing.bin_of[i] + 1];
      filled[packing.bin_of[i]] += lengths[i];
    }
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    members.resize(documents.size());
    auto next = begins;
    for (std::size_t i = 0; i < documents.size(); ++i) members[next[packing.bin_of[i]]++] = documents[i];
  }
  std::span<const std::uint32_t> members_of(std::uint32_t bin) const {
    return std::span(members).subspan(begins[bin], begins[bin + 1] - begins[bin]);
  }
};

}  // namespace

/// Packs documents, window by window.
class PackedOrderWriter {
 public:
  PackedOrderWriter(const PackingOptions& options, std::function<void(Bytes block)> sink)
      : options_(options), sink_(std::move(sink)) {}

  PackedOrder::Table pack(const PackedDocuments& documents) {
    documents.visit([&](std::int64_t tokens) {
      documents_.push_back({next_token_, std::max<std::int64_t>(tokens - 1, 0)});
      next_token_ += tokens;
      if (std::ssize(documents_) == PackedOrder::window) end_window();
    });
    if (!documents_.empty()) end_window();
    return std::move(table_);
  }

 private:
  void end_window() {
    const auto first_sample = table_.samples;
    starts_ = {0};
    pieces_.clear();
    add_samples();
    auto block = encode(starts_, pieces_);
    table_.windows.push_back({first_sample, table_.bytes, hash64(block)});
    table_.bytes += block.size();
    documents_.clear();
    sink_(std::move(block));
  }

  void add_samples() {
    PackedRemainders rests;
    for (std::size_t document = 0; document < documents_.size(); ++document) {
      const auto positions = documents_[document].positions;
      table_.positions += positions;
      if (positions % options_.sequence == 0) continue;
      rests.documents.push_back(static_cast<std::uint32_t>(document));
      rests.lengths.push_back(options_.rounded(positions % options_.sequence));
    }
    rests.pack(options_.sequence, options_.max_pieces);
    for (std::size_t document = 0, rest = 0; document < documents_.size(); ++document) {
      const auto& [begin, positions] = documents_[document];
      for (std::int64_t from = 0; from + options_.sequence <= positions; from += options_.sequence) {
        pieces_.push_back({begin + from, options_.sequence});
        end_sample(options_.sequence);
      }
      if (rest == rests.documents.size() || rests.documents[rest] != document) continue;
      const auto bin = rests.packing.bin_of[rest++];
      const auto members = rests.members_of(bin);
      if (members.front() != document) continue;
      for (const auto member : members) pieces_.push_back(remainder_of(documents_[member]));
      end_sample(rests.filled[bin]);
    }
  }

  PackedPiece remainder_of(const PackedPiece& document) const {
    const auto positions = document.positions % options_.sequence;
    return {document.begin + document.positions - positions, positions};
  }

  void end_sample(std::int64_t length) {
    const auto segments = std::ssize(pieces_) - starts_.back() + (length < options_.sequence ? 1 : 0);
    table_.max_segments = std::max(table_.max_segments, segments);
    starts_.push_back(static_cast<std::uint32_t>(pieces_.size()));
    ++table_.samples;
  }

  PackingOptions options_;
  std::function<void(Bytes)> sink_;
  std::int64_t next_token_ = 0;
  std::vector<PackedPiece> documents_;  ///< documents of the current window, each as one piece
  std::vector<std::uint32_t> starts_;
  std::vector<PackedPiece> pieces_;
  PackedOrder::Table table_;
};

std::int64_t PackedOrder::Table::samples_of(std::size_t index) const {
  return (index + 1 < windows.size() ? windows[index + 1].first_sample : samples) - windows[index].first_sample;
}

std::uint64_t PackedOrder::Table::bytes_of(std::size_t index) const {
  return (index + 1 < windows.size() ? windows[index + 1].offset : bytes) - windows[index].offset;
}

bool PackedOrder::Table::is_consistent() const {
  if (samples < 0 || (windows.empty() ? samples > 0 : windows.front().first_sample != 0)) return false;
  for (std::size_t index = 0; index < windows.size(); ++index) {
    const auto count = samples_of(index);
    if (windows[index].first_sample < 0 || windows[index].offset > bytes || count < 0) return false;
    const auto starts = (static_cast<std::uint64_t>(count) + 1) * start_bytes;
    if (bytes_of(index) < starts || (bytes_of(index) - starts) % piece_bytes != 0) return false;
  }
  return true;
}

std::uint64_t PackedOrder::max_bytes(const PackingOptions& options, const PackedDocuments& documents) {
  const auto windows = documents.documents / window + 1;
  const auto cuts = documents.tokens / options.sequence;
  const auto pieces = documents.documents + cuts;
  // For any two bins with room for more pieces, the content of one would not have fitted into the other.
  const auto padded = documents.tokens + documents.documents * (options.pad_to - 1);
  const auto bins = 2 * (padded / options.sequence) + pieces / options.max_pieces + windows;
  return static_cast<std::uint64_t>(pieces) * piece_bytes +
         static_cast<std::uint64_t>(std::min(cuts + bins, pieces) + windows) * start_bytes +
         static_cast<std::uint64_t>(windows) * window_bytes;
}

PackedOrder::PackedOrder(const PackingOptions& options, const PackedDocuments& documents,
                         const std::function<MemoryLimits()>& limits)
    : options_(options) {
  constexpr std::uint64_t small = std::uint64_t{1} << 20;  // reading the limits takes up to a millisecond
  const auto bytes = max_bytes(options, documents);
  if (bytes >= small) {
    expect_memory(bytes, limits(), fmt::format("the order of {} packed documents", documents.documents),
                  ", or cut documents instead of packing them");
  }
  table_ = PackedOrderWriter(options, [&](Bytes block) { blocks_.push_back(std::move(block)); }).pack(documents);
}

PackedOrder::PackedOrder(const PackingOptions& options, Table table, std::string path, UniqueFd file)
    : options_(options),
      table_(std::move(table)),
      path_(std::move(path)),
      file_(std::move(file)),
      are_verified_(std::make_unique<std::atomic<bool>[]>(table_.windows.size())) {}

void PackedOrder::write(AtomicFile& file, const std::string& key, const PackingOptions& options,
                        const PackedDocuments& documents) {
  const auto table = PackedOrderWriter(options, [&](const Bytes& block) { file.write(block); }).pack(documents);
  ByteWriter end;
  for (const auto& each : table.windows) {
    end.put(each.first_sample);
    end.put(each.offset);
    end.put(each.digest);
  }
  end.put(table.samples);
  end.put(table.positions);
  end.put(table.max_segments);
  end.put(static_cast<std::uint64_t>(table.windows.size()));
  end.put(file_form);
  Digest digest;
  digest.update(end.view());
  end.put_bytes(as_bytes(key));
  end.put_bytes(as_bytes(digest.hex()));
  file.write(end.view());
}

std::optional<PackedOrder> PackedOrder::open(const std::string& path, const FolderTrust& trust, const std::string& key,
                                             const PackingOptions& options) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!file || !trust.covers(file.get()) || ::fstat(file.get(), &status) != 0) return std::nullopt;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < trailer_bytes) return std::nullopt;
  Bytes trailer(trailer_bytes);
  if (read_at(file.get(), size - trailer_bytes, trailer)) return std::nullopt;
  ByteReader counts(trailer);
  Table table{.samples = counts.get<std::int64_t>(),
              .positions = counts.get<std::int64_t>(),
              .max_segments = counts.get<std::int64_t>()};
  const auto windows = counts.get<std::uint64_t>();
  const auto form = counts.get<std::uint64_t>();
  if (form != file_form || windows > (size - trailer_bytes) / window_bytes) return std::nullopt;
  Bytes entries(windows * window_bytes);
  table.bytes = size - trailer_bytes - entries.size();
  if (read_at(file.get(), table.bytes, entries)) return std::nullopt;
  Digest digest;
  digest.update(entries);
  digest.update(ByteView(trailer).first(trailer_bytes - 2 * digest_bytes));
  if (as_text(ByteView(trailer).last(2 * digest_bytes)) != key + digest.hex()) return std::nullopt;
  ByteReader reader(entries);
  while (reader.remaining() > 0) {
    Window each{.first_sample = reader.get<std::int64_t>()};
    each.offset = reader.get<std::uint64_t>();
    each.digest = reader.get<std::uint64_t>();
    table.windows.push_back(each);
  }
  if (!table.is_consistent()) return std::nullopt;
  return PackedOrder(options, std::move(table), path, std::move(file));
}

std::vector<PackedPiece> PackedOrder::pieces(std::int64_t sample) const {
  const auto after = std::ranges::upper_bound(table_.windows, sample, {}, &Window::first_sample);
  const auto index = static_cast<std::size_t>(after - table_.windows.begin()) - 1;
  if (file_ && !are_verified_[index].load(std::memory_order_acquire)) verify(index);
  const auto samples = static_cast<std::uint64_t>(table_.samples_of(index));
  const auto number = static_cast<std::uint64_t>(sample - table_.windows[index].first_sample);
  std::array<std::uint32_t, 2> bounds{};
  read(index, number * start_bytes, std::as_writable_bytes(std::span(bounds)));
  const auto first_piece = (samples + 1) * start_bytes;
  const auto stored = (table_.bytes_of(index) - first_piece) / piece_bytes;
  if (bounds[0] > bounds[1] || bounds[1] > stored) fail("is damaged");
  Bytes bytes((bounds[1] - bounds[0]) * piece_bytes);
  read(index, first_piece + bounds[0] * piece_bytes, bytes);
  ByteReader reader(bytes);
  std::vector<PackedPiece> pieces;
  pieces.reserve(bounds[1] - bounds[0]);
  std::int64_t positions = 0;
  while (reader.remaining() > 0) {
    PackedPiece piece{.begin = reader.get<std::int64_t>()};
    piece.positions = reader.get<std::uint32_t>();
    positions += options_.rounded(piece.positions);
    pieces.push_back(piece);
  }
  if (positions > options_.sequence) fail("is damaged");
  return pieces;
}

void PackedOrder::read(std::size_t index, std::uint64_t from, std::span<std::byte> into) const {
  if (!file_) {
    std::copy_n(blocks_[index].begin() + static_cast<std::ptrdiff_t>(from), into.size(), into.begin());
    return;
  }
  if (const auto fault = read_at(file_.get(), table_.windows[index].offset + from, into)) fail(*fault);
}

void PackedOrder::verify(std::size_t index) const {
  Bytes block(table_.bytes_of(index));
  read(index, 0, block);
  if (hash64(block) != table_.windows[index].digest) fail("is damaged");
  are_verified_[index].store(true, std::memory_order_release);
}

void PackedOrder::fail(std::string_view what) const {
  throw SourceError(fmt::format("{}, which holds the order of packed samples, {}: remove it, and it is made again",
                                printable(path_), what));
}

}  // namespace levada
