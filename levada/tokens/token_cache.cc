#include "levada/tokens/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "levada/base/urls.h"
#include "levada/sources/megatron_writer.h"
#include "levada/tokens/bad_texts.h"
#include "levada/tokens/tokenize.h"
#include "levada/tokens/work_team.h"

namespace levada {
namespace {

namespace fs = std::filesystem;

// Small, so that the folder is locked only briefly; not smaller, because each look-up waits for the disk.
constexpr std::size_t texts_per_lookup = 512;

std::string real_path(const std::string& path) {
  if (is_url(path)) return path;
  std::error_code error;
  const auto real = fs::canonical(path, error);
  return error ? path : real.string();
}

std::uint64_t half_of_file_system(const std::string& dir) {
  std::error_code error;
  const auto space = fs::space(dir, error);
  return error ? std::uint64_t{100} << 30 : space.capacity / 2;
}

std::uint64_t bytes_of(std::span<const TokenCacheEntry> entries) {
  std::uint64_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.bytes;
  return bytes;
}

std::string waiting_for(std::size_t texts, const std::string& first) {
  const auto others = texts == 1 ? "" : fmt::format(" and {} other{}", texts - 1, texts == 2 ? "" : "s");
  return fmt::format("another process is tokenizing {}{}: waiting for its tokens", printable(first), others);
}

void write_meta(AtomicFile& file, const CacheEntryMeta& meta) {
  file.write(as_bytes(meta.text()));
  file.sync();
  file.publish();
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
  if (is_url(dir)) {
    throw InvalidArgument(
        fmt::format("the folder of the cache is {}; it must be a local one (--cache-dir, cache_dir=)", printable(dir)));
  }
  const auto parent = dir.empty() ? default_cache_dir() : dir;
  return parent.empty() ? parent : (fs::path(parent) / "tokens").string();
}

std::string token_cache_folder_or_fail(const std::string& dir) {
  auto folder = token_cache_folder(dir);
  if (!folder.empty()) return folder;
  throw SourceError(
      "text is tokenized into a cache, but neither XDG_CACHE_HOME nor HOME names its folder: name one (--cache-dir, "
      "cache_dir=)");
}

/// The shared state of files that are tokenized together.
struct TokenCache::Work {
  std::mutex mutex;
  std::uint64_t done = 0, total = 0;     ///< bytes of texts; guarded by mutex
  std::atomic<std::uint64_t> made = 0;   ///< bytes of new entries since the cache was last bounded
  std::atomic<bool> has_failed = false;  ///< an entry could not be written: work on others is abandoned
  WorkTeam* team = nullptr;              ///< the threads that encode

  /// Thrown to abort work on other files.
  struct Abandoned {};
  void expect_no_failure() const {
    if (has_failed) throw Abandoned();
  }

  /// Reports that these bytes of a text are done. Aborts if the receiver throws, or if work on another file has failed.
  void advance(std::uint64_t bytes, const std::string& path, const TokenizeTexts& how) {
    expect_no_failure();
    const std::lock_guard lock(mutex);
    done += bytes;
    if (how.progress) how.progress({printable(path), done, total});
  }
};

/// A text as it was when it was looked up.
struct TokenCache::Text {
  std::string path;
  CacheKey key;
  std::string entry;  ///< the key of its entry: key.text, or key.with_content() if another text has that
  std::string prefix;
  std::string content = {};  ///< digest of all its bytes, if it has no time and is therefore compared whole

  bool is_found_in(const CacheEntryMeta& meta) const {
    return meta.key == entry &&
           (entry != key.text || meta.is_of(key.modified_ns) || (!content.empty() && meta.content == content));
  }
};

TokenCache::TokenCache(TokenCacheOptions options)
    : options_(std::move(options)), folder_(token_cache_folder_or_fail(options_.dir), options_.warn) {
  if (!options_.max_bytes) options_.max_bytes = half_of_file_system(folder_.dir());
}

std::vector<std::optional<CachedTokens>> TokenCache::find(std::span<const Text> texts) {
  const auto lock = folder_.lock_for_use();
  std::vector<std::optional<CachedTokens>> found(texts.size());
  std::vector<std::string> used;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& prefix = texts[i].prefix;
    if (prefix.empty()) continue;
    const auto meta = folder_.find(prefix);
    if (!meta || !texts[i].is_found_in(*meta)) continue;
    used.push_back(prefix);
    ::utimensat(AT_FDCWD, meta_path(prefix).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    found[i] = CachedTokens{.prefix = prefix, .bad_lines = meta->bad_lines, .digest = meta->digest};
  }
  folder_.note_uses(used);
  return found;
}

/// Handles an entry that has this text's key, but is not known to be of this text. If all bytes of the text are the
/// same, records that and returns its tokens; otherwise points `text` to a separate entry.
std::optional<CachedTokens> TokenCache::recognize(Text& text, const TokenizeTexts& how, Work& work) {
  auto meta = folder_.find(text.prefix);
  if (!meta || meta->key != text.entry) return std::nullopt;
  const auto content = DigestedFile(how.open(text.path)).digest([&] { work.advance(0, text.path, how); });
  if (content == meta->content && text.key.modified_ns == CacheKey::unknown_time) {
    text.content = content;
  } else if (content == meta->content) {
    meta->modified.push_back(text.key.modified_ns);
    if (!folder_.trust().is_read_only()) {
      AtomicFile file(meta_path(text.prefix), {}, folder_.trust().file_mode());
      write_meta(file, *meta);
    } else {
      return CachedTokens{.prefix = text.prefix, .bad_lines = meta->bad_lines, .digest = meta->digest};
    }
  } else {
    text.entry = text.key.with_content(content);
    text.prefix = folder_.prefix_of(text.entry);
  }
  return find({&text, 1}).front();
}

/// Throws FileBusy if another process is making the entry.
CachedTokens TokenCache::find_or_make(Text text, const TokenizeTexts& how, Work& work) {
  auto found = find({&text, 1}).front();
  if (!found) found = recognize(text, how, work);
  if (!found) {
    AtomicFile meta_file(meta_path(text.prefix), {}, folder_.trust().file_mode());
    // Another process may have created it since the look-up.
    const auto meta = folder_.find(text.prefix);
    if (meta && meta->key == text.entry) throw FileBusy("another process has just made it");
    return make(text, how, work, meta_file);
  }
  const std::lock_guard lock(work.mutex);
  work.done += text.key.bytes;
  return *std::move(found);
}

CachedTokens TokenCache::make(const Text& text, const TokenizeTexts& how, Work& work, AtomicFile& meta_file) {
  const auto &path = text.path, &prefix = text.prefix;
  Digest checksum;
  const auto write = [&](int fd, const void* bytes, std::size_t size) {
    const auto written = ::write(fd, bytes, size);
    if (written > 0) checksum.update({static_cast<const std::byte*>(bytes), static_cast<std::size_t>(written)});
    return written;
  };
  const auto dtype = how.text.chats ? dtypes::int32 : token_dtype(how.tokenizer->vocabulary_size());
  // The .json's name is made durable together with all others in the folder.
  MegatronWriter writer(prefix, {.dtype = dtype,
                                 .overwrite = true,
                                 .lasting = false,
                                 .masks_loss = how.text.chats,
                                 .mode = folder_.trust().file_mode(),
                                 .write = write});
  const DigestedFile* digested = nullptr;
  const auto reader = read_text(path, how.text, how.formats, [&](const std::string& name) {
    auto file = std::make_unique<DigestedFile>(how.open(name));
    digested = file.get();
    return file;
  });
  std::uint64_t noted = 0;
  TokenizeOptions options{.team = work.team};
  if (!how.text.chats) options.end_of_document = how.end_of_document;
  options.progress = [&] {
    const auto bytes = reader->stored_bytes();
    work.advance(bytes - std::exchange(noted, bytes), path, how);
  };
  levada::tokenize(*reader, *how.tokenizer, writer, options);
  const bool has_tag = text.key.modified_ns == 0;
  const auto content = has_tag ? std::string() : digested->digest(options.progress);
  const bool is_same = CacheKey::of(*how.open(path), how) == text.key &&
                       (text.entry == text.key.text || text.entry == text.key.with_content(content));
  if (!is_same) {
    throw SourceError(fmt::format("{} was changed while it was tokenized: start again with a file that does not change",
                                  printable(path)));
  }
  writer.finish();
  const TokenFile made(prefix, {.open = [this](const std::string& name) { return open(name); }});
  const CacheEntryMeta meta{.key = text.entry,
                            .content = content,
                            .modified = {text.key.modified_ns},
                            .source = shown_url(real_path(path)),
                            .tokenizer = how.tokenizer->name(),
                            .digest = made.contents().digest,
                            .checksum = checksum.hex(),
                            .tokens = writer.tokens(),
                            .documents = writer.documents(),
                            .bad_lines = reader->bad_lines(),
                            .bytes = writer.bytes()};
  const auto lock = folder_.lock_for_use();
  folder_.note_uses({prefix});
  write_meta(meta_file, meta);
  work.made += meta.bytes;
  return {.prefix = prefix, .bad_lines = meta.bad_lines, .digest = meta.digest, .bytes_read = reader->stored_bytes()};
}

/// Makes an entry. If the disk is full, evicts unused entries to make room, while there are any.
CachedTokens TokenCache::make_with_room(const Text& text, const TokenizeTexts& how, Work& work) {
  for (;;) {
    try {
      return find_or_make(text, how, work);
    } catch (const WriteFailed& error) {
      if (!error.is_disk_full() || !bound(bytes_of(folder_.entries()) / 2, "the disk is full")) {
        work.has_failed = true;
        throw SourceError(folder_.with_remedy(error));
      }
    }
  }
}

std::vector<CachedTokens> TokenCache::tokenize(const std::vector<std::string>& paths, const TokenizeTexts& how) {
  std::vector<CachedTokens> tokens(paths.size());
  const auto threads = static_cast<std::size_t>(how.threads > 0 ? how.threads : std::thread::hardware_concurrency());
  const std::size_t min_threads =
      std::ranges::any_of(paths, is_url) ? 16 : 1;  // Threads that wait for a network use little CPU.
  const auto concurrency = [&](std::size_t count) {
    return std::min(std::max(threads, min_threads), std::max<std::size_t>(count, 1));
  };
  Work work;
  BadTexts bad;
  std::vector<Text> all(paths.size());
  const auto identify = [&](std::size_t i) {
    try {
      const auto file = how.open(paths[i]);
      if (how.text.skip_bad && file->identity().size == 0) {
        tokens[i].bad_lines = whole_text();
        return;
      }
      const auto key = CacheKey::of(*file, how);
      all[i] = {.path = paths[i], .key = key, .entry = key.text, .prefix = folder_.prefix_of(key.text)};
    } catch (const SourceError& error) {
      bad.add(i, error.what());
    }
  };
  /// Missing texts by entry and time, because several names may refer to one file. One thread handles all texts of an
  /// entry.
  std::map<std::string, std::map<std::int64_t, std::vector<std::size_t>>> missing;
  const auto look_up = [&](std::size_t group) {
    const auto first = group * texts_per_lookup;
    const auto some = std::span(all).subspan(first, std::min(texts_per_lookup, all.size() - first));
    auto found = find(some);
    const std::lock_guard lock(work.mutex);
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i].prefix.empty()) continue;
      const auto time = some[i].key.modified_ns;
      // Texts of unknown time are compared one by one.
      const auto state = time == CacheKey::unknown_time ? time - static_cast<std::int64_t>(first + i) : time;
      auto* same = found[i] ? nullptr : &missing[some[i].prefix][state];
      if (!same || same->empty()) work.total += some[i].key.bytes;
      if (same) {
        same->push_back(first + i);
      } else {
        work.done += some[i].key.bytes;
        tokens[first + i] = *std::move(found[i]);
      }
    }
  };
  WorkTeam none;
  for_each_of(all.size(), concurrency(all.size()), identify, none, 0);
  bad.throw_if_any(paths.size());
  const auto groups = (all.size() + texts_per_lookup - 1) / texts_per_lookup;
  for_each_of(groups, concurrency(groups), look_up, none, 0);
  if (missing.empty()) return tokens;
  using States = std::vector<std::vector<std::size_t>>;  ///< texts of one entry, by their time
  std::vector<States> texts;
  for (auto& [prefix, states] : missing) {
    auto& of_entry = texts.emplace_back();
    for (auto& [time, names] : states) of_entry.push_back(std::move(names));
    std::ranges::sort(of_entry);
  }
  std::ranges::sort(texts);
  const auto often = *options_.max_bytes / 8;  // Entries of earlier runs are evicted before new ones fill the disk.
  constexpr auto pause = std::chrono::milliseconds(100);
  for (bool has_waited = false; !texts.empty(); has_waited = true) {
    std::vector<States> busy;  ///< guarded by work.mutex
    const auto at_once = concurrency(texts.size());
    WorkTeam team(static_cast<int>(threads - std::min(threads, at_once)));
    work.team = &team;
    const auto tokenize_state = [&](const std::vector<std::size_t>& names) {
      try {
        const auto made = make_with_room(all[names.front()], how, work);
        for (const auto text : names) tokens[text] = made;
      } catch (const FileBusy&) {
        throw;
      } catch (const SourceError& error) {
        if (work.has_failed) throw;
        bad.add(names.front(), error.what());
      }
    };
    const auto tokenize_one = [&](std::size_t i) {
      auto state = texts[i].begin();
      try {
        for (; state != texts[i].end(); ++state) tokenize_state(*state);
      } catch (const Work::Abandoned&) {
        return;
      } catch (const FileBusy&) {
        const std::lock_guard lock(work.mutex);
        busy.emplace_back(state, texts[i].end());
        return;
      } catch (...) {
        work.has_failed = true;
        throw;
      }
      if (work.made <= often) return;
      work.made = 0;
      bound(*options_.max_bytes, "");
    };
    for_each_of(texts.size(), at_once, tokenize_one, team, threads);
    texts = std::move(busy);
    if (texts.empty()) break;
    const auto& first = all[texts.front().front().front()].path;
    if (!has_waited) warn(waiting_for(texts.size(), first));
    if (how.progress) how.progress({printable(first), work.done, work.total});
    std::this_thread::sleep_for(pause);
  }
  if (work.made > 0) bound(*options_.max_bytes, "");
  bad.throw_if_any(paths.size());
  return tokens;
}

/// Evicts unused entries until at most `max_bytes` remain. Returns whether there were any.
bool TokenCache::bound(std::uint64_t max_bytes, std::string_view why) try {
  const auto removed = folder_.prune(max_bytes);
  if (!removed.empty()) {
    warn(fmt::format(
        "{}: {} of {} removed from the token cache {}, the least recently used",
        why.empty() ? fmt::format("--cache-size (cache_size=) is {}", format_bytes(max_bytes)) : why,
        removed.size() == 1 ? "the tokens of 1 text" : fmt::format("the tokens of {} texts", removed.size()),
        format_bytes(bytes_of(removed)), printable(folder_.dir())));
  }
  const auto bytes = bytes_of(folder_.entries());
  const std::lock_guard lock(mutex_);
  if (why.empty() && bytes > max_bytes && !std::exchange(has_warned_, true)) {
    warn(fmt::format(
        "the token cache {} holds {} in use, more than its limit of {}: raise the limit (--cache-size, cache_size=)",
        printable(folder_.dir()), format_bytes(bytes), format_bytes(max_bytes)));
  }
  return !removed.empty();
} catch (const SourceError& error) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_warned_, true))
    warn(error.what());  // The tokens exist; the cache may temporarily exceed its limit.
  return false;
}

void TokenCache::warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

}  // namespace levada
