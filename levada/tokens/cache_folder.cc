#include "levada/tokens/cache_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "levada/base/atomic_file.h"
#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "levada/sources/file.h"
#include "levada/sources/known_files.h"
#include "levada/tokens/cache_uses.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_name = "lock";
constexpr std::string_view another_folder = "name another folder (--cache-dir, cache_dir=)";

std::string made(std::string dir) {
  const int error = create_private_folder(dir);
  if (error == 0) return dir;
  throw SourceError(
      fmt::format("cannot create the token cache {}: {}; {}", printable(dir), std::strerror(error), another_folder));
}

void add_file(const std::string& path, const FolderTrust& trust, Digest& digest,
              const std::function<void()>& between_reads) {
  const auto file = open_trusted_file(path, trust);
  std::vector<char> piece(std::size_t{256} << 10);
  std::size_t got = 0;
  std::uint64_t at = 0;
  do {
    got = file->read(at, piece);
    digest.update(std::string_view(piece.data(), got));
    at += got;
    if (between_reads) between_reads();
  } while (got > 0);
}

}  // namespace

FolderLock::~FolderLock() {
  if (fd_) ::flock(fd_.get(), LOCK_UN);
}

CacheFolder::CacheFolder(std::string dir, std::function<void(const std::string&)> warn)
    : dir_(made(std::move(dir))),
      warn_(std::move(warn)),
      trust_(FolderTrust::of(dir_, "the token cache", another_folder)) {
  static_cast<void>(lock_for_use());
}

CacheFolder::~CacheFolder() {
  if (!uses_) return;
  uses_ = {};
  remove_list_if_ended(uses_path_, trust_);  // Not removed while a forked process still has it open.
}

std::string CacheFolder::prefix_of(const std::string& key) const {
  return (fs::path(dir_) / entry_name(key)).string();
}

std::string CacheFolder::with_remedy(const WriteFailed& error) const {
  return fmt::format("{}; {}{}", error.what(), error.is_denied() ? "" : "make room on that file system, or ",
                     another_folder);
}

void CacheFolder::fail_to_write() const {
  const int error = errno;
  throw SourceError(with_remedy(WriteFailed(
      error, fmt::format("cannot write to the token cache {}: {}", printable(dir_), std::strerror(error)))));
}

void CacheFolder::fail(std::string_view what) const {
  throw SourceError(
      fmt::format("cannot {} the token cache {}: {}; {}", what, printable(dir_), std::strerror(errno), another_folder));
}

FolderLock CacheFolder::lock_for_use() const {
  return trust_.is_read_only() ? FolderLock() : lock(LOCK_SH);
}

FolderLock CacheFolder::lock(int operation) const {
  const auto path = (fs::path(dir_) / lock_name).string();
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, private_mode));
  if (!fd) fail_to_write();
  if (trust_.file_mode() != private_mode) ::fchmod(fd.get(), trust_.file_mode() & ACCESSPERMS);  // by its owner
  // It is held for moments, or for minutes if entries are removed and the file system is slow.
  const auto deadline = Deadline::after(std::chrono::minutes(15));
  std::chrono::seconds pause(5);
  auto reminder = Deadline::after(pause);
  while (::flock(fd.get(), operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) fail("lock");
    if (deadline.expired()) {
      throw SourceError(fmt::format("cannot lock the token cache {}: another process has held it for 15 minutes; {}",
                                    printable(dir_), another_folder));
    }
    if (warn_ && reminder.expired()) {
      warn_(fmt::format("waiting for the token cache {}, which another process has locked ({})", printable(dir_),
                        printable(path)));
      reminder = Deadline::after(pause *= 2);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return FolderLock(std::move(fd));
}

std::optional<CacheEntryMeta> CacheFolder::find(const std::string& prefix) const {
  auto meta = CacheEntryMeta::read(meta_path(prefix), trust_);
  return meta && has_all_bytes(prefix, meta->bytes, trust_) ? std::move(meta) : std::nullopt;
}

void CacheFolder::open_list() {
  auto path = (fs::path(dir_) / fmt::format("{}{}", uses_prefix, uses_pattern)).string();
  uses_ = UniqueFd(::mkostemp(path.data(), O_CLOEXEC | O_APPEND));
  uses_path_ = std::move(path);
  const auto mode = trust_.file_mode() & ACCESSPERMS;
  if (!uses_ || ::fchmod(uses_.get(), mode) != 0 || ::flock(uses_.get(), LOCK_EX) != 0) {
    fail_to_write();
  }
}

void CacheFolder::note_uses(const std::vector<std::string>& prefixes) {
  if (prefixes.empty() || trust_.is_read_only()) return;
  std::string lines;
  for (const auto& prefix : prefixes) lines += line_of(prefix);
  const std::lock_guard lock(mutex_);
  if (!uses_) open_list();
  // On a network file system, other hosts see writes only after a sync or close, and this file stays open.
  const auto written = ::write(uses_.get(), lines.data(), lines.size());
  const bool is_short = std::cmp_less(written, lines.size());
  if (written >= 0 && is_short) errno = ENOSPC;
  if (is_short || ::fdatasync(uses_.get()) != 0) fail_to_write();
}

std::vector<TokenCacheEntry> CacheFolder::entries() const {
  const auto held = trust_.is_read_only() ? FolderLock() : lock(LOCK_EX);
  return read_entries();
}

/// The folder must be locked, so that no list of entries in use is mistaken for that of an ended process.
std::vector<TokenCacheEntry> CacheFolder::read_entries() const {
  const auto in_use = trust_.is_read_only() ? std::set<std::string>() : entries_in_use(dir_, trust_);
  std::vector<TokenCacheEntry> entries;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir_, error)) {
    const auto file_name = file.path().filename().string();
    std::string name(entry_of_file(file_name));
    if (name.empty() || file.path().extension() != meta_extension) continue;
    std::optional<CacheEntryMeta> meta;
    try {
      meta = CacheEntryMeta::read(file.path().string(), trust_);
    } catch (const StorageFault&) {
      continue;
    }
    struct stat status {};
    if (!meta || ::stat(file.path().c_str(), &status) != 0) continue;
    const bool is_used = in_use.contains(name);
    entries.push_back({.prefix = (fs::path(dir_) / name).string(),
                       .source = meta->source,
                       .tokenizer = meta->tokenizer,
                       .tokens = meta->tokens,
                       .documents = meta->documents,
                       .bytes = meta->bytes,
                       .last_used = status.st_mtim.tv_sec,
                       .in_use = is_used});
  }
  std::ranges::sort(entries, [](const TokenCacheEntry& a, const TokenCacheEntry& b) {
    return std::pair(b.last_used, a.prefix) < std::pair(a.last_used, b.prefix);
  });
  return entries;
}

void CacheFolder::remove_entry(const std::string& prefix) const {
  // Removes the .json first: without it the other files are not an entry.
  for (const auto extension : {meta_extension, std::string_view(".idx"), std::string_view(".bin"), mark_extension}) {
    const auto path = prefix + std::string(extension);
    if (trust_.covers(path)) ::unlink(path.c_str());
  }
}

/// Removes the remains of entries that are incomplete, damaged or of another version, unless a process is making or
/// using them.
void CacheFolder::remove_unreadable() const {
  const auto in_use = entries_in_use(dir_, trust_);
  std::set<std::string> prefixes;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir_, error)) {
    const auto name = file.path().filename().string();
    const std::string entry(entry_of_file(name));
    if (!entry.empty() && !in_use.contains(entry)) prefixes.insert((fs::path(dir_) / entry).string());
  }
  for (const auto& prefix : prefixes) {
    try {
      if (CacheEntryMeta::read(meta_path(prefix), trust_)) continue;
      const AtomicFile reserved(meta_path(prefix), {}, trust_.file_mode());
      remove_entry(prefix);
    } catch (const SourceError&) {
      continue;  // Another process is writing this entry, or it cannot be read now.
    }
  }
}

std::vector<TokenCacheEntry> CacheFolder::prune(std::uint64_t max_bytes) {
  const auto held = lock(LOCK_EX);
  const bool of_any_user = trust_.file_mode() != private_mode;
  AtomicFile::remove_abandoned(
      dir_, [](std::string_view name) { return !entry_of_file(name).empty() || name.ends_with(KnownFiles::extension); },
      of_any_user);
  auto left = read_entries();
  std::uint64_t bytes = 0;
  for (const auto& entry : left) bytes += entry.bytes;
  std::vector<TokenCacheEntry> removed;
  for (auto entry = left.rbegin(); entry != left.rend() && bytes > max_bytes; ++entry) {
    if (entry->in_use) continue;
    remove_entry(entry->prefix);
    bytes -= entry->bytes;
    removed.push_back(*entry);
  }
  remove_unreadable();
  KnownFiles::remove_unused(dir_, trust_);
  return removed;
}

bool CacheFolder::evict_damaged(const std::string& prefix) {
  if (trust_.is_read_only()) return false;
  const auto held = lock(LOCK_EX);
  try {
    check(prefix);
    return false;
  } catch (const StorageFault&) {
    const auto is_there = [&](const char* extension) { return trust_.covers(prefix + extension); };
    // Other processes may be able to read the entry, and have it in use.
    if (is_there(".json") && is_there(".bin") && is_there(".idx")) throw;
  } catch (const SourceError&) {  // It is damaged or not trusted.
  }
  remove_entry(prefix);
  return true;
}

/// Returns the content that the mark must have if the entry was verified in its current state, or nothing if the entry
/// is incomplete.
std::optional<std::string> CacheFolder::mark_of(const std::string& prefix) const {
  const auto meta = CacheEntryMeta::read(meta_path(prefix), trust_);
  if (!meta) return std::nullopt;
  auto mark = meta->checksum;
  for (const char* extension : {".bin", ".idx"}) {
    struct stat status {};
    if (::lstat((prefix + extension).c_str(), &status) != 0) return std::nullopt;
    mark +=
        fmt::format(" {} {} {}.{:09}", status.st_size, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return mark + "\n";
}

void CacheFolder::verify(const std::string& prefix, const std::function<void()>& between_reads) const {
  const auto mark = mark_of(prefix);
  if (!mark || read_trusted(mark_path(prefix), trust_) == mark) return;
  try {
    check(prefix, between_reads);
  } catch (const DamagedEntry&) {
    if (mark_of(prefix) == mark) throw;
  }
  if (trust_.is_read_only() || mark_of(prefix) != mark) return;
  try {
    AtomicFile file(mark_path(prefix), {}, trust_.file_mode());
    file.write(as_bytes(*mark));
    file.publish(false);
  } catch (const SourceError&) {
    // The next run verifies the entry again.
  }
}

void CacheFolder::check(const std::string& prefix, const std::function<void()>& between_reads) const try {
  const auto meta = CacheEntryMeta::read(meta_path(prefix), trust_);
  if (!meta) {
    throw DamagedEntry(
        fmt::format("{} is damaged: remove it to tokenize the text again", printable(meta_path(prefix))));
  }
  Digest digest;
  for (const char* extension : {".bin", ".idx"}) add_file(prefix + extension, trust_, digest, between_reads);
  if (digest.hex() != meta->checksum) {
    throw DamagedEntry(
        fmt::format("{}.bin or its .idx is damaged: remove both to tokenize the text again", printable(prefix)));
  }
} catch (const SourceError&) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(meta_path(prefix), error))) throw;
}

}  // namespace levada
