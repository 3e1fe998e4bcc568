#include "levada/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "levada/base/error.h"
#include "levada/base/signals_blocked.h"

namespace levada {
namespace {

// Large enough for any disk and small compared with memory: at most two of these are in flight.
constexpr std::uint64_t stretch_bytes = std::uint64_t{8} << 20;

std::filesystem::path folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

std::string partial_name(const std::string& path) {
  return (folder_of(path) / fmt::format(".{}.partial", std::filesystem::path(path).filename().string())).string();
}

bool is_same_file(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// The state of an existing partial file.
enum class PartialState { nothing, in_use, of_another_user, no_file, stuck };

bool is_own(const struct stat& status, const std::string& path) {
  if (status.st_uid == ::geteuid()) return true;
  const auto own = owner_of_new_files(folder_of(path));
  return own && status.st_uid == own->user;
}

/// Removes the partial file if no process is writing it, and then returns PartialState::nothing. Returns
/// PartialState::stuck, with errno set, if that fails.
PartialState remove_if_abandoned(const std::string& partial, bool of_any_user) {
  const UniqueFd fd(::open(partial.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    if (errno == ENOENT) return PartialState::nothing;
    return errno == ELOOP    ? PartialState::no_file
           : errno == EACCES ? PartialState::of_another_user
                             : PartialState::stuck;
  }
  if (!S_ISREG(status.st_mode)) return PartialState::no_file;
  if (!of_any_user && !is_own(status, partial)) return PartialState::of_another_user;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return PartialState::in_use;
  // Its writer may have renamed it between the calls.
  if (!is_same_file(fd.get(), partial)) return PartialState::nothing;
  return ::unlink(partial.c_str()) == 0 || errno == ENOENT ? PartialState::nothing : PartialState::stuck;
}

/// The names of partial files, for the signal handler. The handler cannot take a lock, so they are in static memory.
struct PartialName {
  /// Process that owns the partial file, or 0 if there is none. Negative while that process creates, renames or removes
  /// the file, which it does with signals blocked; the handler then waits for it. A forked child may reuse its parent's
  /// slots.
  std::atomic<pid_t> owner = 0;
  std::array<char, PATH_MAX> path{};
};
std::array<PartialName, 16> partial_names;
std::atomic<bool> is_ending = false;
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// Returns a slot, or partial_names.size() if all are taken or the name is too long.
std::size_t take_slot(const std::string& path) {
  const pid_t self = ::getpid();
  for (std::size_t slot = 0; slot < partial_names.size() && path.size() < PATH_MAX; ++slot) {
    auto& name = partial_names[slot];
    pid_t owner = name.owner;
    if (std::abs(owner) == self || !name.owner.compare_exchange_strong(owner, -self)) continue;
    std::memcpy(name.path.data(), path.c_str(), path.size() + 1);  // not payload: a file name
    return slot;
  }
  return partial_names.size();
}

void set_owner(std::size_t slot, pid_t owner) {
  if (slot < partial_names.size()) partial_names[slot].owner = owner;
}

/// Does not return once a signal is ending the process, so that files that the handler has removed are not reported as
/// errors.
void block_if_ending() {
  while (is_ending) ::pause();
}

/// Returns the slot for a file about to be created.
std::size_t note_partial(const std::string& path) {
  const auto slot = take_slot(path);
  if (is_ending) set_owner(slot, 0);
  block_if_ending();
  return slot;
}

}  // namespace

void AtomicFile::remove_partial_files() noexcept {
  constexpr int patience_ms = 300;  // a disk may be slow to create a file, but a launcher kills soon
  const pid_t self = ::getpid();
  is_ending = true;
  for (auto& name : partial_names) {
    const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    for (int i = 0; i < patience_ms && name.owner == -self; ++i) ::nanosleep(&moment, nullptr);
    if (name.owner == self) ::unlink(name.path.data());
  }
}

AtomicFile::AtomicFile(std::string path, Write write, mode_t mode)
    : path_(std::move(path)),
      partial_(partial_name(path_)),
      write_(write ? std::move(write) : ::write),
      mode_(mode | private_mode) {
  open();
}

AtomicFile::~AtomicFile() {
  if (!fd_) return;
  const SignalsBlocked blocked;
  set_owner(slot_, -::getpid());
  // On a file system without locks, another process may have removed it as abandoned and created its own.
  if (is_same_file(fd_.get(), partial_)) ::unlink(partial_.c_str());
  set_owner(slot_, 0);
}

void AtomicFile::fail(std::string_view what, int error) const {
  block_if_ending();
  throw WriteFailed(error, fmt::format("cannot {} {}: {}", what, path_,
                                       error == ENOSPC ? "the disk is full, and nothing of it is left there"
                                                       : std::generic_category().message(error)));
}

bool WriteFailed::is_disk_full() const noexcept {
  return error_ == ENOSPC || error_ == EDQUOT;
}

bool WriteFailed::is_denied() const noexcept {
  return error_ == EACCES || error_ == EPERM || error_ == EROFS;
}

void AtomicFile::open() {
  const SignalsBlocked blocked;
  slot_ = note_partial(partial_);
  try {
    while (!fd_) fd_ = create();
  } catch (const std::exception&) {
    set_owner(slot_, 0);
    throw;
  }
  set_owner(slot_, ::getpid());
}

/// Returns nothing if another process's partial file was in the way and has been removed; the caller then tries again.
UniqueFd AtomicFile::create() const {
  UniqueFd fd(::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode_ & ACCESSPERMS));
  if (!fd) {
    if (errno != EEXIST) fail("create", errno);
    remove_stale();
    return {};
  }
  if (is_for_group() && ::fchmod(fd.get(), mode_ & ACCESSPERMS) != 0) fail("create", errno);
  // Held as long as the file is open. On a file system without locks, two concurrent writers go undetected.
  const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  // Another process may have removed it as abandoned before it was locked.
  return locked && is_same_file(fd.get(), partial_) ? std::move(fd) : UniqueFd();
}

/// Removes a partial file left by a process that has ended. Throws if another process is writing it or it cannot be
/// removed.
void AtomicFile::remove_stale() const {
  const auto throw_blocked = [&](std::string_view why) {
    throw SourceError(fmt::format("cannot create {}: {} {}: remove it, or choose another name", path_, partial_, why));
  };
  switch (remove_if_abandoned(partial_, is_for_group())) {
    case PartialState::nothing: return;
    case PartialState::in_use:
      throw FileBusy(
          fmt::format("another process is writing {}: wait until it has finished, or choose another name", path_));
    case PartialState::of_another_user: throw_blocked("belongs to another user"); break;
    case PartialState::no_file: throw_blocked("is not a regular file"); break;
    case PartialState::stuck: fail("create", errno);
  }
}

void AtomicFile::remove_abandoned(const std::string& folder,
                                  const std::function<bool(std::string_view name)>& is_wanted,
                                  bool of_any_user) noexcept try {
  constexpr std::string_view start = ".", end = ".partial";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto partial = entry.path().filename().string();
    if (partial.size() < start.size() + end.size() || !partial.starts_with(start) || !partial.ends_with(end)) continue;
    const auto name = std::string_view(partial).substr(start.size(), partial.size() - start.size() - end.size());
    if (is_wanted(name)) remove_if_abandoned(entry.path().string(), of_any_user);
  }
} catch (const std::exception&) {
  return;  // Leftover files only take up space.
}

void AtomicFile::write(ByteView bytes) {
  while (!bytes.empty()) {
    const auto done = write_(fd_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    written_ += static_cast<std::uint64_t>(done);
  }
  while (written_ - started_ >= stretch_bytes) start_stretch();
}

// Leaves little for sync() to do, and reuses page-cache pages, because touching new ones takes longer than a fast disk
// does. The calls are only advice, so errors are ignored; sync() reports disk errors.
void AtomicFile::start_stretch() {
  const auto stretch = static_cast<off_t>(stretch_bytes);
  const auto start = static_cast<off_t>(started_);
  ::sync_file_range(fd_.get(), start, stretch, SYNC_FILE_RANGE_WRITE);
  started_ += stretch_bytes;
  const auto before = start - 2 * stretch;
  if (before < 0) return;
  ::sync_file_range(fd_.get(), before, stretch,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  ::posix_fadvise(fd_.get(), before, stretch, POSIX_FADV_DONTNEED);
}

void AtomicFile::sync() {
  if (::fsync(fd_.get()) != 0) fail("write", errno);
}

void AtomicFile::rename_into_place() {
  const SignalsBlocked blocked;
  set_owner(slot_, -::getpid());
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    set_owner(slot_, ::getpid());
    fail("name", errno);
  }
  fd_ = {};
  set_owner(slot_, 0);
}

void AtomicFile::publish(bool lasting) {
  if (!is_same_file(fd_.get(), partial_)) {
    block_if_ending();
    throw FileBusy(fmt::format("another process is writing {}", path_));
  }
  rename_into_place();
  if (lasting) sync_folder_of(path_);
}

void sync_folder_of(const std::string& path) {
  const auto folder = folder_of(path);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder, and do not need it.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw SourceError(fmt::format("cannot write {}: {}", folder.string(), std::generic_category().message(errno)));
  }
}

}  // namespace levada
