#include "levada/sources/index_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <thread>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/memory_limits.h"
#include "levada/base/unique_fd.h"

// A file of the cache is
//   magic, version, bytes of the header    8 + 4 + 4
//   header                                 key, contents, numbers of cuts, skipped ranges and documents
//   cuts, skipped ranges                   8 and 16 bytes each
//   documents: begins, then tokens         8 and 4 bytes each
//   digest of all of it                    32 hexadecimal digits

namespace levada {
namespace {

constexpr std::uint64_t magic = 0x5845444e4944564c;  // "LVDINDEX"
constexpr std::uint32_t version = 3;
constexpr std::size_t preamble_bytes = 16, digest_bytes = 32;
constexpr std::string_view extension = ".index";
constexpr std::uint32_t longest_header = 1 << 16;
constexpr std::uint64_t large_payload = 1 << 20;  // for which it is worth looking at the limits

template <typename T>
ByteView bytes_of(const std::vector<T>& items) {
  return std::as_bytes(std::span(items));
}

/// What stays the same while the file changes, so that an index takes the place of the one before.
Bytes name_bytes(const IndexKey& key) {
  ByteWriter out;
  out.put_sized(key.kind);
  out.put_sized(key.real_path);
  out.put_sized(key.text_field);
  out.put(std::uint8_t{key.skip_bad});
  out.put(key.stride);
  out.put(key.phase);
  return std::move(out).take();
}

// Without the device's number: some file systems get another one at each mount.
Bytes key_bytes(const IndexKey& key) {
  ByteWriter out;
  out.put_sized(name_bytes(key));
  out.put(key.identity.size);
  out.put(key.identity.modified_ns);
  out.put(key.identity.changed_ns);
  out.put(key.identity.inode);
  return std::move(out).take();
}

std::string file_name(const std::string& dir, const IndexKey& key) {
  return (std::filesystem::path(dir) / fmt::format("{:016x}{}", hash64(name_bytes(key)), extension)).string();
}

/// Empty unless it is a regular file of this user's own.
UniqueFd open_own(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return {};
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() ? std::move(fd) : UniqueFd();
}

Bytes header_bytes(const IndexKey& key, const FileIndex& index) {
  ByteWriter out;
  out.put_sized(key_bytes(key));
  out.put(index.contents.tokens);
  out.put(index.contents.documents);
  out.put(index.contents.bad_lines);
  out.put_sized(index.contents.digest);
  out.put(std::uint64_t{index.cuts.size()});
  out.put(std::uint64_t{index.skipped.size()});
  out.put(std::uint64_t{index.documents.begins.size()});
  return std::move(out).take();
}

/// Reads the parts of a cache file one behind the other, all of them into the digest.
class PartReader {
 public:
  explicit PartReader(UniqueFd fd) : fd_(std::move(fd)) {
    struct stat status {};
    if (fd_ && ::fstat(fd_.get(), &status) == 0) left_ = static_cast<std::uint64_t>(status.st_size);
  }

  std::uint64_t left() const { return left_; }
  /// False if there is not as much.
  bool read(std::span<std::byte> into) {
    if (into.size() > left_) return false;
    for (std::size_t done = 0; done < into.size();) {
      const auto got = ::read(fd_.get(), into.data() + done, into.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
    }
    left_ -= into.size();
    digest_before_ = digest_.hex();
    digest_.update(into);
    return true;
  }
  /// Whether the part read last is the digest of those before it.
  bool ends_well(ByteView last) const { return left_ == 0 && as_text(last) == digest_before_; }

 private:
  UniqueFd fd_;
  std::uint64_t left_ = 0;
  Digest digest_;
  std::string digest_before_;
};

struct Header {
  FileIndex index;
  std::uint64_t cuts = 0, skipped = 0, documents = 0;

  /// What follows the header, but for the digest; empty if no file is as long.
  std::optional<std::uint64_t> payload_bytes() const {
    constexpr std::uint64_t most = std::uint64_t{1} << 56;
    if (cuts > most || skipped > most || documents > most) return std::nullopt;
    return cuts * 8 + skipped * 16 + documents * 12;
  }
};

/// Empty unless it is of this key.
std::optional<Header> read_header(ByteView bytes, const IndexKey& key) {
  ByteReader in(bytes);
  if (as_text(in.get_sized()) != as_text(key_bytes(key))) return std::nullopt;
  Header header;
  header.index.contents.tokens = in.get<std::int64_t>();
  header.index.contents.documents = in.get<std::int64_t>();
  header.index.contents.bad_lines = in.get<std::int64_t>();
  header.index.contents.digest = in.get_string();
  header.cuts = in.get<std::uint64_t>();
  header.skipped = in.get<std::uint64_t>();
  header.documents = in.get<std::uint64_t>();
  in.expect_end();
  return header;
}

template <typename T>
bool read_items(PartReader& in, std::vector<T>& items, std::uint64_t count) {
  items.resize(count);
  return in.read(std::as_writable_bytes(std::span(items)));
}

std::optional<FileIndex> read_index(PartReader& in, const IndexKey& key) {
  Bytes part(preamble_bytes);
  if (!in.read(part)) return std::nullopt;
  ByteReader preamble(part);
  const bool known = preamble.get<std::uint64_t>() == magic && preamble.get<std::uint32_t>() == version;
  const auto size = preamble.get<std::uint32_t>();
  if (!known || size > longest_header) return std::nullopt;
  part.resize(size);
  if (!in.read(part)) return std::nullopt;
  auto header = read_header(part, key);
  if (!header) return std::nullopt;
  const auto payload = header->payload_bytes();
  if (!payload || *payload + digest_bytes != in.left()) return std::nullopt;
  if (*payload >= large_payload) expect_memory(*payload, memory_limits(), "the index of " + key.real_path);
  auto& index = header->index;
  part.resize(digest_bytes);
  const bool whole = read_items(in, index.cuts, header->cuts) && read_items(in, index.skipped, header->skipped) &&
                     read_items(in, index.documents.begins, header->documents) &&
                     read_items(in, index.documents.tokens, header->documents) && in.read(part) && in.ends_well(part);
  if (!whole) return std::nullopt;
  return std::move(index);
}

void write_index(AtomicFile& file, const IndexKey& key, const FileIndex& index) {
  const auto header = header_bytes(key, index);
  if (header.size() > longest_header) throw SourceError("cannot keep an index: the file's name is too long");
  ByteWriter preamble;
  preamble.put(magic);
  preamble.put(version);
  preamble.put(static_cast<std::uint32_t>(header.size()));
  Digest digest;
  for (const auto part : {preamble.view(), ByteView(header), bytes_of(index.cuts), bytes_of(index.skipped),
                          bytes_of(index.documents.begins), bytes_of(index.documents.tokens)}) {
    digest.update(part);
    file.write(part);
  }
  file.write(as_bytes(digest.hex()));
}

}  // namespace

std::string default_cache_dir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/levada";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/levada";
  }
  return {};
}

std::optional<FileIndex> KeptIndex::load() const try {
  PartReader in(open_own(file_name(dir_, key_)));
  return read_index(in, key_);
} catch (const CorruptMessage&) {
  return std::nullopt;
}

std::optional<FileIndex> KeptIndex::load_or_reserve(const std::function<void()>& on_wait) {
  constexpr auto pause = std::chrono::milliseconds(100);
  std::error_code error;
  std::filesystem::create_directories(dir_, error);  // Where it fails, the file cannot be made either.
  for (bool waited = false;; waited = true) {
    try {
      place_ = std::make_unique<AtomicFile>(file_name(dir_, key_));
      // Its maker may have been done between the look and the reservation.
      auto index = load();
      if (index) place_.reset();
      return index;
    } catch (const FileBusy&) {
      if (!waited) on_wait();
    }
    std::this_thread::sleep_for(pause);
    if (auto index = load()) return index;
  }
}

void KeptIndex::store(const FileIndex& index) {
  const auto place = std::move(place_);
  if (!place->is_own()) {
    throw SourceError(fmt::format("cannot keep {}: the file system gives it to another user", place->path()));
  }
  write_index(*place, key_, index);
  place->publish(false);
}

void KeptIndex::remove() const {
  ::unlink(file_name(dir_, key_).c_str());
}

void remove_abandoned_indexes(const std::string& dir) {
  AtomicFile::remove_abandoned(dir, extension);
}

}  // namespace levada
