#include "levada/sources/block_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/private_files.h"
#include "levada/base/text.h"
#include "levada/base/threads.h"
#include "levada/base/unique_fd.h"

namespace levada {
namespace {

[[noreturn]] void fail_backing(const std::string& dir, int error) {
  throw SourceError(
      fmt::format("cannot cache remote files in {}: {}; make room, or name another folder (--cache-dir, cache_dir=)",
                  dir.empty() ? "memory" : printable(dir), std::strerror(error)));
}

UniqueFd make_backing(const std::string& dir) {
  if (!dir.empty()) create_private_folder(dir);
  auto path = (std::filesystem::path(dir) / "blocks-XXXXXX").string();
  UniqueFd fd(dir.empty() ? ::memfd_create("levada blocks", MFD_CLOEXEC) : ::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) fail_backing(dir, errno);
  if (!dir.empty()) ::unlink(path.c_str());
  return fd;
}

/// Returns a quarter of the free space of the file's file system.
std::uint64_t room(const UniqueFd& file) {
  struct statvfs status {};
  if (::fstatvfs(file.get(), &status) != 0 || status.f_blocks == 0) return UINT64_MAX;
  return status.f_bavail * status.f_frsize / 4;
}

/// Calls `transfer` (pread, pwrite) until all bytes have been transferred.
template <typename Transfer, typename Byte>
void transfer_all(const std::string& dir, const Transfer& transfer, int fd, std::span<Byte> bytes,
                  std::uint64_t offset) {
  while (!bytes.empty()) {
    const auto done = transfer(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail_backing(dir, done < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

}  // namespace

/// A file beneath the cache, alive while it is read or fetched.
struct BlockCache::Source {
  explicit Source(std::unique_ptr<File> opened) : file(std::move(opened)), identity(file->identity()) {}

  std::unique_ptr<File> file;
  FileIdentity identity;
};

class BlockCache::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(const BlockCacheOptions& options)
      : options_(options),
        backing_(make_backing(options.dir)),
        slots_(std::max<std::uint64_t>(std::min(options.max_bytes, room(backing_)) / options.block_bytes, 2)),
        fetch_blocks_(std::max<std::uint64_t>(options.fetch_bytes / options.block_bytes, 1)),
        max_ahead_(std::clamp<std::uint64_t>(options.ahead_bytes / options.block_bytes, 1, slots_ / 2)) {}

  void finish() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    work_.notify_all();
  }

  bool is_forked() const { return ::getpid() != process_; }

  void add(const Source& file) {
    const std::lock_guard lock(mutex_);
    files_.emplace(&file, LastAnnouncement());
  }

  /// Returns some of the bytes at `offset`; none only at the end of the file.
  std::size_t read(const SharedSource& file, std::uint64_t offset, std::span<char> into) {
    if (offset >= file->identity.size) return 0;
    const auto number = offset / options_.block_bytes;
    const auto last = std::min(file->identity.size, offset + into.size());
    std::unique_lock lock(mutex_);
    while (true) {
      const auto found = blocks_.find({file.get(), number});
      if (found == blocks_.end()) {
        fetch_for_reader(lock, file, number, blocks_in(last));
        continue;
      }
      auto& block = found->second;
      note_read(block);
      if (const auto fetch = block.fetch) {
        changed_.wait(lock, [&] { return fetch->is_done; });
        if (fetch->failure) std::rethrow_exception(fetch->failure);
        continue;
      }
      into = into.first(std::min(last, (number + 1) * options_.block_bytes) - offset);
      ++block.readers;
      used_.splice(used_.begin(), used_, block.place);
      lock.unlock();
      std::exception_ptr failure;
      try {
        transfer_all(options_.dir, ::pread, backing_.get(), into,
                     block.slot * options_.block_bytes + offset % options_.block_bytes);
      } catch (const SourceError&) {
        failure = std::current_exception();
      }
      lock.lock();
      if (--block.readers == 0) changed_.notify_all();
      if (failure) std::rethrow_exception(failure);
      return into.size();
    }
  }

  void announce(const SharedSource& file, std::uint64_t offset, std::uint64_t bytes) {
    const auto size = file->identity.size;
    if (offset >= size || bytes == 0) return;
    const auto first = offset / options_.block_bytes;
    auto end = blocks_in(offset + std::min(bytes, size - offset));
    const std::lock_guard lock(mutex_);
    auto& before = files_.at(file.get());
    before.in_order = first <= before.end && end >= before.end ? before.in_order + 1 : 0;
    before.end = end;
    const bool is_small = end - first < fetch_blocks_;
    if (before.in_order >= enough_in_order) end = std::min(end_of_window(end), blocks_in(size));
    if (is_small && !ranges_.empty() && ranges_.back().file == file && ranges_.back().end >= first &&
        ranges_.back().next <= first) {
      ranges_.back().end = std::max(ranges_.back().end, end);
    } else {
      ranges_.push_back({file, first, end});
    }
    start_threads();
    work_.notify_one();
  }

  /// Forgets a file that no reader uses any more.
  void remove(const Source& file) {
    const std::lock_guard lock(mutex_);
    drop_ranges(file);
    files_.erase(&file);
    for (auto block = blocks_.lower_bound({&file, 0}); block != blocks_.end() && block->first.first == &file;) {
      const auto next = std::next(block);
      if (!block->second.fetch) free_slots_.push_back(erase(block));
      block = next;
    }
    work_.notify_one();
  }

 private:
  using Key = std::pair<const Source*, std::uint64_t>;
  /// A fetch of contiguous blocks.
  struct Fetch {
    SharedSource file;
    std::uint64_t first;
    std::vector<std::uint64_t> slots;
    bool is_done = false;
    std::exception_ptr failure;
  };
  struct Block {
    std::uint64_t slot;
    std::shared_ptr<Fetch> fetch;  ///< the running fetch; null once the block is cached
    bool is_ahead;                 ///< whether it was fetched ahead and has not been read yet
    std::list<Key>::iterator place;
    int readers = 0;  ///< readers that are copying from it
  };
  using Blocks = std::map<Key, Block>;
  struct Range {
    SharedSource file;
    std::uint64_t next, end;  ///< block numbers
  };

  /// The last announcement for a file. A file is read in order if each announcement begins in or right after the
  /// previous one.
  struct LastAnnouncement {
    std::uint64_t end = 0;
    int in_order = 0;
  };
  static constexpr int enough_in_order = 4;

  /// Returns the end of the read-ahead, in whole fetches, for a file read in order whose blocks before `end` are
  /// announced.
  std::uint64_t end_of_window(std::uint64_t end) const {
    return std::max(end, (end + max_ahead_ / 2) / fetch_blocks_ * fetch_blocks_);
  }

  std::uint64_t blocks_in(std::uint64_t bytes) const {
    return (bytes + options_.block_bytes - 1) / options_.block_bytes;
  }

  void note_read(Block& block) {
    if (!std::exchange(block.is_ahead, false)) return;
    --ahead_;
    work_.notify_one();
  }

  /// Starts the threads that fetch ahead. If the system refuses some, the others do the work. If it refuses all, the
  /// next announcement tries again.
  void start_threads() {
    try {
      for (; threads_ < max_threads_; ++threads_) {
        start_thread("reading ahead", [state = shared_from_this()] { state->fetch_ahead(); }).detach();
      }
    } catch (const EngineError&) {
      max_threads_ = std::max(threads_, 1);
      if (threads_ == 0) ranges_.clear();
    }
  }

  void drop_ranges(const Source& file) {
    std::erase_if(ranges_, [&](const Range& range) { return range.file.get() == &file; });
  }

  /// Returns the slot that the block had.
  std::uint64_t erase(Blocks::iterator block) {
    note_read(block->second);
    used_.erase(block->second.place);
    const auto slot = block->second.slot;
    blocks_.erase(block);
    return slot;
  }

  /// Returns nothing if all blocks are in use.
  std::optional<std::uint64_t> take_slot() {
    if (!free_slots_.empty()) {
      const auto slot = free_slots_.back();
      free_slots_.pop_back();
      return slot;
    }
    if (slots_used_ < slots_) return slots_used_++;
    for (auto key = used_.rbegin(); key != used_.rend(); ++key) {
      const auto block = blocks_.find(*key);
      if (!block->second.fetch && block->second.readers == 0) return erase(block);
    }
    return std::nullopt;
  }

  /// Begins a fetch of the missing blocks from `first` on, before `end`; returns null if there is no free slot.
  std::shared_ptr<Fetch> begin_fetch(const SharedSource& file, std::uint64_t first, std::uint64_t end, bool is_ahead) {
    auto fetch = std::make_shared<Fetch>(Fetch{.file = file, .first = first});
    for (auto number = first; number < end && !blocks_.contains({file.get(), number}); ++number) {
      const auto slot = take_slot();
      if (!slot) break;
      const Key key(file.get(), number);
      used_.push_front(key);
      blocks_.emplace(key, Block{*slot, fetch, is_ahead, used_.begin()});
      fetch->slots.push_back(*slot);
    }
    if (is_ahead) ahead_ += fetch->slots.size();
    return fetch->slots.empty() ? nullptr : fetch;
  }

  /// Performs the fetch with the lock released.
  void run(std::unique_lock<std::mutex>& lock, Fetch& fetch) {
    lock.unlock();
    std::exception_ptr failure;
    try {
      read_blocks(fetch);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    const bool is_of_use = !failure && files_.contains(fetch.file.get());
    for (std::size_t i = 0; i < fetch.slots.size(); ++i) {
      const auto block = blocks_.find({fetch.file.get(), fetch.first + i});
      if (!is_of_use) free_slots_.push_back(erase(block));
      else block->second.fetch = nullptr;
    }
    fetch.failure = failure;
    fetch.is_done = true;
    changed_.notify_all();
  }

  void read_blocks(const Fetch& fetch) const {
    const auto& [file, identity] = *fetch.file;
    const auto offset = fetch.first * options_.block_bytes;
    const auto size = std::min(fetch.slots.size() * options_.block_bytes, identity.size - offset);
    const auto memory = std::make_unique_for_overwrite<char[]>(size);
    std::span<const char> bytes(memory.get(), size);
    const auto got = read_fully(*file, offset, {memory.get(), size});
    if (got < size) {
      throw SourceError(fmt::format("{} ends at byte {}, {} bytes short: it was cut off while it was being read",
                                    file->path(), offset + got, identity.size - offset - got));
    }
    for (const auto slot : fetch.slots) {
      const auto block = bytes.first(std::min<std::size_t>(options_.block_bytes, bytes.size()));
      transfer_all(options_.dir, ::pwrite, backing_.get(), block, slot * options_.block_bytes);
      bytes = bytes.subspan(block.size());
    }
  }

  void fetch_for_reader(std::unique_lock<std::mutex>& lock, const SharedSource& file, std::uint64_t first,
                        std::uint64_t end) {
    // The blocks that fill the read-ahead budget are not the ones being read: their readers have moved elsewhere.
    const bool is_waiting = !ranges_.empty() && ahead_ + next_count(ranges_.front()) > max_ahead_;
    if (is_waiting || ahead_ >= max_ahead_) {
      for (auto& [key, block] : blocks_) block.is_ahead = false;
      ahead_ = 0;
      work_.notify_one();
    }
    const auto fetch = begin_fetch(file, first, std::min(end, first + fetch_blocks_), false);
    if (!fetch) {
      changed_.wait(lock);
      return;
    }
    run(lock, *fetch);
    if (fetch->failure) std::rethrow_exception(fetch->failure);
  }

  /// Returns the number of blocks in the next fetch of a range.
  std::uint64_t next_count(const Range& range) const {
    return std::min({range.end - range.next, fetch_blocks_, max_ahead_});
  }

  /// Returns a fetch of the next announced blocks that are not cached; null if there are none, or no space for them
  /// yet.
  std::shared_ptr<Fetch> next_ahead() {
    while (!ranges_.empty()) {
      auto& range = ranges_.front();
      for (; range.next < range.end; ++range.next) {
        const auto block = blocks_.find({range.file.get(), range.next});
        if (block == blocks_.end()) break;
        used_.splice(used_.begin(), used_, block->second.place);  // It will be needed again soon.
      }
      const auto count = next_count(range);
      if (count > 0) {
        if (ahead_ + count > max_ahead_) return nullptr;
        auto fetch = begin_fetch(range.file, range.next, range.next + count, true);
        if (!fetch) return nullptr;
        auto rest = std::move(range);
        ranges_.pop_front();
        rest.next += fetch->slots.size();
        if (rest.next < rest.end) ranges_.push_back(std::move(rest));
        return fetch;
      }
      ranges_.pop_front();
    }
    return nullptr;
  }

  void fetch_ahead() {
    std::unique_lock lock(mutex_);
    while (!over_) {
      auto fetch = next_ahead();
      if (!fetch) {
        work_.wait(lock);
        continue;
      }
      work_.notify_one();  // There may be more to do.
      run(lock, *fetch);
      if (fetch->failure) drop_ranges(*fetch->file);  // Its reader will get the error.
      // This may be the last use of a closed file, whose destructor may wait for a lock (of the Python interpreter)
      // that another thread holds while it waits for mutex_.
      lock.unlock();
      fetch.reset();
      lock.lock();
    }
  }

  const BlockCacheOptions options_;
  const UniqueFd backing_;
  const std::uint64_t slots_, fetch_blocks_, max_ahead_;  ///< in blocks
  const pid_t process_ = ::getpid();

  std::mutex mutex_;
  std::condition_variable changed_;  ///< a fetch has finished, or a block has no readers any more
  std::condition_variable work_;     ///< there may be blocks to fetch ahead
  // Guarded by mutex_.
  Blocks blocks_;
  std::list<Key> used_;  ///< the most recently read first
  std::vector<std::uint64_t> free_slots_;
  std::uint64_t slots_used_ = 0;                     ///< slots used so far, including those that are free again
  std::uint64_t ahead_ = 0;                          ///< number of blocks with is_ahead set
  std::deque<Range> ranges_;                         ///< announced and not yet fetched
  std::map<const Source*, LastAnnouncement> files_;  ///< the open files
  int threads_ = 0, max_threads_ = options_.fetches;
  bool over_ = false;
};

class BlockCache::CachedFile final : public File {
 public:
  CachedFile(std::unique_ptr<File> file, std::shared_ptr<BlockCache> cache)
      : source_(std::make_shared<const Source>(std::move(file))), cache_(std::move(cache)) {
    if (!state().is_forked()) state().add(*source_);
  }
  ~CachedFile() override {
    if (!state().is_forked()) state().remove(*source_);
  }

  const std::string& path() const override { return source_->file->path(); }
  /// Returns the identity at the time of opening. Reads return that content or fail.
  FileIdentity identity() const override { return source_->identity; }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    if (!state().is_forked()) return state().read(source_, offset, into);
    throw SourceError(
        fmt::format("{} was opened before this process was forked: open it in the process that reads it", path()));
  }
  void will_read(std::uint64_t offset, std::uint64_t bytes) const override {
    if (!state().is_forked()) state().announce(source_, offset, bytes);
  }

 private:
  State& state() const { return *cache_->state_; }

  std::shared_ptr<const Source> source_;
  std::shared_ptr<BlockCache> cache_;
};

BlockCache::BlockCache(const BlockCacheOptions& options) : state_(std::make_shared<State>(options)) {}

BlockCache::~BlockCache() {
  // In a forked child, a thread of the parent may have held the lock.
  if (!state_->is_forked()) state_->finish();
}

std::unique_ptr<File> BlockCache::wrap(std::unique_ptr<File> file) {
  return std::make_unique<CachedFile>(std::move(file), shared_from_this());
}

}  // namespace levada
