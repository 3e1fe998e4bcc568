#include "levada/tokens/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "levada/base/atomic_file.h"
#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/json.h"
#include "levada/base/private_files.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/sources/megatron_writer.h"
#include "levada/sources/sampled_digest.h"
#include "levada/tokens/cache_entry.h"
#include "levada/tokens/cache_uses.h"
#include "levada/tokens/tokenize.h"
#include "levada/tokens/work_team.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_name = "lock";
// Few, so that the folder is locked for moments; many, because each look-up waits for the disk.
constexpr std::size_t texts_per_lookup = 512;

void add_file(const std::string& path, Digest& digest) {
  const auto file = open_private_file(path);
  std::vector<char> piece(std::size_t{256} << 10);
  std::size_t got = 0;
  std::uint64_t at = 0;
  do {
    got = file->read(at, piece);
    digest.update(std::string_view(piece.data(), got));
    at += got;
  } while (got > 0);
}

std::string real_path(const std::string& path) {
  if (is_url(path)) return path;
  std::error_code error;
  const auto real = fs::canonical(path, error);
  return error ? path : real.string();
}

/// What the tokens depend on, in one line.
std::string key_of(const std::string& place, const File& file, const TokenizeTexts& how) {
  const auto identity = file.identity();
  Digest digest;
  for (const std::string& part :
       {place, std::to_string(identity.size), std::to_string(identity.modified_ns), std::to_string(identity.changed_ns),
        identity.tag.empty() ? sampled_digest(file, identity.size) : identity.tag, how.text.field(),
        std::to_string(int{how.text.skip_bad}), how.tokenizer->digest(), std::to_string(how.end_of_document),
        std::to_string(CacheEntryMeta::version)}) {
    digest.update(fmt::format("{}:", part.size()));
    digest.update(part);
  }
  return digest.hex();
}

/// Of an error that something could not be written to the cache.
std::string with_remedy(std::string_view error) {
  return fmt::format("{}; make room (levada cache --prune) or name another folder (--cache-dir, cache_dir=)", error);
}

/// Whether this process could not create an entry in the folder, nor remove one.
bool is_read_only(const std::string& dir) {
  const auto may = [&](int access) { return ::faccessat(AT_FDCWD, dir.c_str(), access, AT_EACCESS) == 0; };
  return may(R_OK | X_OK) && !may(W_OK);
}

/// Held while an entry is found and noted as in use, or alone while entries are removed. Shared, nothing in a folder
/// that this process can only read: nor can it keep others from evicting.
UniqueFd lock_folder(const std::string& dir, int operation) {
  if (operation == LOCK_SH && is_read_only(dir)) return {};
  const auto path = (fs::path(dir) / lock_name).string();
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    throw SourceError(
        fmt::format("cannot write to the token cache {}: {}; name another folder (--cache-dir, cache_dir=)",
                    printable(dir), std::strerror(errno)));
  }
  // It is held for moments, or for minutes where entries are removed and the file system is slow.
  const auto deadline = Deadline::after(std::chrono::minutes(15));
  while (::flock(fd.get(), operation | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK || deadline.expired()) {
      const char* why = error == EWOULDBLOCK ? "another process has held it for 15 minutes" : std::strerror(error);
      throw SourceError(fmt::format("cannot lock the token cache {}: {}; name another folder (--cache-dir, cache_dir=)",
                                    printable(dir), why));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fd;
}

std::uint64_t half_of_file_system(const std::string& dir) {
  std::error_code error;
  const auto space = fs::space(dir, error);
  return error ? std::uint64_t{100} << 30 : space.capacity / 2;
}

void remove_entry(const std::string& prefix) {
  // The .json first: without it the others are not an entry.
  for (const char* extension : {".json", ".idx", ".bin"}) remove_own(prefix + extension);
}

/// Removes what is left of this user's entries that are not whole, are damaged or of another version, unless a process
/// makes or uses them.
void remove_unreadable(const std::string& dir) {
  const auto in_use = entries_in_use(dir);
  std::set<std::string> prefixes;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir, error)) {
    const auto name = file.path().filename().string();
    const std::string entry(entry_of_file(name));
    if (!entry.empty() && !in_use.contains(entry)) prefixes.insert((fs::path(dir) / entry).string());
  }
  for (const auto& prefix : prefixes) {
    if (CacheEntryMeta::read(meta_path(prefix))) continue;
    try {
      const AtomicFile reserved(meta_path(prefix), {}, private_mode);
      remove_entry(prefix);
    } catch (const SourceError&) {
      continue;  // It is being made.
    }
  }
}

/// With the folder locked, so that no list of what is in use is taken for that of an ended process.
std::vector<TokenCacheEntry> read_entries(const std::string& dir) {
  const auto in_use = is_read_only(dir) ? std::set<std::string>() : entries_in_use(dir);
  std::vector<TokenCacheEntry> entries;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(dir, error)) {
    const auto file_name = file.path().filename().string();
    std::string name(entry_of_file(file_name));
    if (name.empty() || file.path().extension() != meta_extension) continue;
    const auto meta = CacheEntryMeta::read(file.path().string());
    struct stat status {};
    if (!meta || ::stat(file.path().c_str(), &status) != 0) continue;
    const bool is_used = in_use.contains(name);
    entries.push_back({.prefix = (fs::path(dir) / name).string(),
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

std::string token_cache_folder(const std::string& dir) {
  const auto parent = dir.empty() ? default_cache_dir() : dir;
  return parent.empty() ? parent : (fs::path(parent) / "tokens").string();
}

/// What the files that are tokenized together have in common.
struct TokenCache::Work {
  std::mutex mutex;
  std::uint64_t done = 0, total = 0;     ///< bytes of texts; guarded by mutex
  std::atomic<std::uint64_t> made = 0;   ///< bytes of entries since the cache was last bounded
  std::atomic<bool> has_failed = false;  ///< a file could not be tokenized: work on others is abandoned
  WorkTeam* team = nullptr;              ///< that encodes

  /// Thrown out of work on other files.
  struct Abandoned {};
  void expect_no_failure() const {
    if (has_failed) throw Abandoned();
  }
};

/// A text, as it was when it was looked up.
struct TokenCache::Text {
  std::string path, key, prefix;
  std::uint64_t bytes = 0;
};

TokenCache::TokenCache(TokenCacheOptions options)
    : options_(std::move(options)), dir_(token_cache_folder(options_.dir)) {
  if (dir_.empty()) {
    throw SourceError(
        "text is tokenized into a cache, and neither XDG_CACHE_HOME nor HOME says where: name a folder (--cache-dir, "
        "cache_dir=)");
  }
  create_private_folder(dir_);
  expect_private_folder(dir_, "the token cache", "name another folder (--cache-dir, cache_dir=)");
  static_cast<void>(lock_folder(dir_, LOCK_SH));
  if (!options_.max_bytes) options_.max_bytes = half_of_file_system(dir_);
}

TokenCache::~TokenCache() {
  if (!uses_) return;
  uses_ = {};
  remove_list_if_ended(uses_path_);  // Not so where it is shared with a process that was forked.
}

void TokenCache::note_uses(const std::string& lines) {
  const std::lock_guard lock(mutex_);
  if (!uses_) {
    auto path = (fs::path(dir_) / fmt::format("{}{}", uses_prefix, uses_pattern)).string();
    uses_ = UniqueFd(::mkostemp(path.data(), O_CLOEXEC | O_APPEND));
    uses_path_ = std::move(path);
    if (!uses_ || ::flock(uses_.get(), LOCK_EX) != 0) {
      throw SourceError(
          with_remedy(fmt::format("cannot write to the token cache {}: {}", printable(dir_), std::strerror(errno))));
    }
  }
  // A network file system shows other hosts what is written when it is synchronized or closed, and this stays open.
  const auto written = ::write(uses_.get(), lines.data(), lines.size());
  const bool is_short = std::cmp_less(written, lines.size());
  if (written >= 0 && is_short) errno = ENOSPC;
  if (is_short || ::fdatasync(uses_.get()) != 0) {
    throw SourceError(
        with_remedy(fmt::format("cannot write to the token cache {}: {}", printable(dir_), std::strerror(errno))));
  }
}

std::vector<std::optional<CachedTokens>> TokenCache::find(std::span<const Text> texts) {
  const auto lock = lock_folder(dir_, LOCK_SH);
  std::vector<std::optional<CachedTokens>> found(texts.size());
  std::string lines;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& prefix = texts[i].prefix;
    const auto meta = CacheEntryMeta::read(meta_path(prefix));
    if (!meta || meta->key != texts[i].key || !has_all_bytes(prefix, meta->bytes)) continue;
    if (lock) lines += line_of(prefix);
    ::utimensat(AT_FDCWD, meta_path(prefix).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    found[i] = CachedTokens{.prefix = prefix, .bad_lines = meta->bad_lines, .digest = meta->digest};
  }
  if (!lines.empty()) note_uses(lines);
  return found;
}

CachedTokens TokenCache::make(const Text& text, const TokenizeTexts& how, Work& work) try {
  const auto &path = text.path, &key = text.key, &prefix = text.prefix;
  AtomicFile meta_file(meta_path(prefix), {}, private_mode);
  // Another process may have made it since it was looked up.
  if (auto found = find({&text, 1}).front()) {
    const std::lock_guard lock(work.mutex);
    work.done += how.open(path)->identity().size;
    return *std::move(found);
  }
  Digest checksum;
  const auto write = [&](int fd, const void* bytes, std::size_t size) {
    const auto written = ::write(fd, bytes, size);
    if (written > 0) checksum.update({static_cast<const std::byte*>(bytes), static_cast<std::size_t>(written)});
    return written;
  };
  const auto dtype = how.text.chats ? dtypes::int32 : token_dtype(how.tokenizer->vocabulary_size());
  // The .json's name is made lasting with all others in the folder.
  MegatronWriter writer(prefix, {.dtype = dtype,
                                 .overwrite = true,
                                 .lasting = false,
                                 .masks_loss = how.text.chats,
                                 .mode = private_mode,
                                 .write = write});
  const auto reader = read_text(path, how.text, how.formats, how.open);
  std::uint64_t noted = 0;
  TokenizeOptions options{.team = work.team};
  if (!how.text.chats) options.end_of_document = how.end_of_document;
  options.progress = [&] {
    work.expect_no_failure();
    const std::lock_guard lock(work.mutex);
    work.done += reader->stored_bytes() - std::exchange(noted, reader->stored_bytes());
    if (how.progress) how.progress({printable(path), work.done, work.total});
  };
  levada::tokenize(*reader, *how.tokenizer, writer, options);
  if (key_of(real_path(path), *how.open(path), how) != key) {
    throw SourceError(fmt::format("{} was changed while it was tokenized: start again with a file that stays as it is",
                                  printable(path)));
  }
  writer.finish();
  const TokenFile made(prefix, {.open = open_private_file});
  const CacheEntryMeta meta{.key = key,
                            .source = shown_url(real_path(path)),
                            .tokenizer = how.tokenizer->name(),
                            .digest = made.contents().digest,
                            .checksum = checksum.hex(),
                            .tokens = writer.tokens(),
                            .documents = writer.documents(),
                            .bad_lines = reader->bad_lines(),
                            .bytes = writer.bytes()};
  const auto lock = lock_folder(dir_, LOCK_SH);
  note_uses(line_of(prefix));
  meta_file.write(as_bytes(meta.text()));
  meta_file.sync();
  meta_file.publish();
  work.made += meta.bytes;
  return {.prefix = prefix, .bad_lines = meta.bad_lines, .digest = meta.digest, .bytes_read = reader->stored_bytes()};
} catch (const WriteFailed& error) {
  throw SourceError(with_remedy(error.what()));
}

CachedTokens TokenCache::wait_or_make(const Text& text, const TokenizeTexts& how, Work& work) {
  constexpr auto pause = std::chrono::milliseconds(100);
  for (bool has_waited = false;; has_waited = true) {
    try {
      return make(text, how, work);
    } catch (const FileBusy&) {
      work.expect_no_failure();
      if (!has_waited && options_.warn) {
        options_.warn(fmt::format("another process is tokenizing {}: waiting for its tokens", printable(text.path)));
      }
      if (how.progress) {
        const std::lock_guard lock(work.mutex);
        how.progress({printable(text.path), work.done, work.total});
      }
      std::this_thread::sleep_for(pause);
    }
  }
}

std::vector<CachedTokens> TokenCache::tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how) {
  std::vector<CachedTokens> tokens(paths.size());
  const auto threads = static_cast<std::size_t>(how.threads > 0 ? how.threads : std::thread::hardware_concurrency());
  const std::size_t min_threads =
      std::ranges::any_of(paths, is_url) ? 16 : 1;  // Threads that wait for a network work little.
  const auto side_by_side = [&](std::size_t count) {
    return std::min(std::max(threads, min_threads), std::max<std::size_t>(count, 1));
  };
  Work work;
  std::vector<Text> all(paths.size());
  const auto identify = [&](std::size_t i) {
    const auto file = how.open(paths[i]);
    const auto size = file->identity().size;
    if (size == 0) throw SourceError(fmt::format("{} is empty: leave it out", file->path()));
    const auto place = real_path(paths[i]);
    const auto key = key_of(place, *file, how);
    all[i] = {paths[i], key, (fs::path(dir_) / entry_name(shown_url(place), key)).string(), size};
  };
  std::map<std::string, std::vector<std::size_t>> missing;  ///< by entry: a file may be given by several names
  const auto look_up = [&](std::size_t group) {
    const auto first = group * texts_per_lookup;
    const auto some = std::span(all).subspan(first, std::min(texts_per_lookup, all.size() - first));
    auto found = find(some);
    const std::lock_guard lock(work.mutex);
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (found[i] || !missing.contains(some[i].prefix)) work.total += some[i].bytes;
      if (found[i]) work.done += some[i].bytes;
      if (found[i]) tokens[first + i] = *std::move(found[i]);
      else missing[some[i].prefix].push_back(first + i);
    }
  };
  WorkTeam none;
  for_each_of(all.size(), side_by_side(all.size()), identify, none, 0);
  const auto groups = (all.size() + texts_per_lookup - 1) / texts_per_lookup;
  for_each_of(groups, side_by_side(groups), look_up, none, 0);
  if (missing.empty()) return tokens;
  std::vector<std::vector<std::size_t>> texts;
  for (auto& [prefix, names] : missing) texts.push_back(std::move(names));
  std::ranges::sort(texts);
  const auto at_once = side_by_side(texts.size());
  WorkTeam team(static_cast<int>(threads - std::min(threads, at_once)));
  work.team = &team;
  const auto often = *options_.max_bytes / 8;  // Entries of earlier runs go before the disk is full of new ones.
  const auto tokenize_one = [&](std::size_t i) {
    try {
      const auto made = wait_or_make(all[texts[i].front()], how, work);
      for (const auto text : texts[i]) tokens[text] = made;
    } catch (const Work::Abandoned&) {
      return;
    } catch (...) {
      work.has_failed = true;
      throw;
    }
    if (work.made <= often) return;
    work.made = 0;
    bound();
  };
  for_each_of(texts.size(), at_once, tokenize_one, team, threads);
  if (work.made > 0) bound();
  return tokens;
}

void TokenCache::bound() try {
  prune(*options_.max_bytes);
  std::uint64_t bytes = 0;
  for (const auto& entry : entries()) bytes += entry.bytes;
  if (bytes <= *options_.max_bytes) return;
  warn_once(
      fmt::format("the token cache {} holds {} that are in use, more than the {} that it may have: raise that "
                  "(--cache-size, cache_size=)",
                  printable(dir_), format_bytes(bytes), format_bytes(*options_.max_bytes)));
} catch (const SourceError& error) {
  warn_once(error.what());  // The tokens are there, and the cache may stay larger for once.
}

void TokenCache::warn_once(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (options_.warn && !std::exchange(has_warned_, true)) options_.warn(text);
}

std::vector<TokenCacheEntry> TokenCache::entries() const {
  const auto lock = lock_folder(dir_, is_read_only(dir_) ? LOCK_SH : LOCK_EX);
  return read_entries(dir_);
}

bool TokenCache::evict_damaged(const std::string& prefix) {
  if (is_read_only(dir_)) return false;
  const auto lock = lock_folder(dir_, LOCK_EX);
  try {
    check({.prefix = prefix});
    return false;
  } catch (const SourceError&) {
    remove_entry(prefix);
    return true;
  }
}

std::vector<TokenCacheEntry> TokenCache::prune(std::uint64_t max_bytes) {
  const auto lock = lock_folder(dir_, LOCK_EX);
  AtomicFile::remove_abandoned(dir_, [](std::string_view name) { return !entry_of_file(name).empty(); });
  auto left = read_entries(dir_);
  std::uint64_t bytes = 0;
  for (const auto& entry : left) bytes += entry.bytes;
  std::vector<TokenCacheEntry> removed;
  for (auto entry = left.rbegin(); entry != left.rend() && bytes > max_bytes; ++entry) {
    if (entry->in_use) continue;
    remove_entry(entry->prefix);
    bytes -= entry->bytes;
    removed.push_back(*entry);
  }
  remove_unreadable(dir_);
  return removed;
}

void TokenCache::check(const TokenCacheEntry& entry) const try {
  const auto meta = CacheEntryMeta::read(meta_path(entry.prefix));
  if (!meta) {
    throw SourceError(
        fmt::format("{} is damaged: remove it, and the text is tokenized again", printable(meta_path(entry.prefix))));
  }
  Digest digest;
  for (const char* extension : {".bin", ".idx"}) add_file(entry.prefix + extension, digest);
  if (digest.hex() != meta->checksum) {
    throw SourceError(
        fmt::format("{}.bin or its .idx is not what was written there: remove both, and the text is "
                    "tokenized again",
                    printable(entry.prefix)));
  }
} catch (const SourceError&) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(meta_path(entry.prefix), error))) throw;
}

}  // namespace levada
