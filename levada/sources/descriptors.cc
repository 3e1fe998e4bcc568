#include "levada/sources/descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

namespace levada {

/// The open descriptors, from the most to the least recently used. One list per process, because the limit is also per
/// process.
class OpenFiles {
 public:
  /// Never destroyed: files may be closed during process exit.
  static OpenFiles& of_process() {
    static auto* const files = new OpenFiles();
    return *files;
  }

  std::shared_ptr<const UniqueFd> use(Descriptor& file) {
    const std::lock_guard lock(mutex_);
    if (file.fd_ != nullptr && &file != newest_) {
      unlink(file);
      link(file);
    }
    return file.fd_;
  }

  void keep(Descriptor& file, std::shared_ptr<const UniqueFd> fd) {
    const auto max = max_open();
    std::vector<std::shared_ptr<const UniqueFd>> closed;  // Closed after the lock is released: a close may take long.
    const std::lock_guard lock(mutex_);
    if (file.fd_ != nullptr) closed.push_back(take(file));  // Two threads have opened it concurrently.
    file.fd_ = std::move(fd);
    link(file);
    while (count_ > max) closed.push_back(take(*oldest_));
  }

  void remove(Descriptor& file) {
    std::shared_ptr<const UniqueFd> closed;
    const std::lock_guard lock(mutex_);
    if (file.fd_ != nullptr) closed = take(file);
  }

  /// Returns whether there were any to close.
  bool close_all() {
    std::vector<std::shared_ptr<const UniqueFd>> closed;
    const std::lock_guard lock(mutex_);
    while (oldest_ != nullptr) closed.push_back(take(*oldest_));
    return !closed.empty();
  }

 private:
  // A fork must not copy a lock that another thread holds.
  OpenFiles() {
    ::pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                     [] { of_process().mutex_.unlock(); });
  }

  static std::size_t max_open() {
    constexpr rlim_t min = 8, max = 1 << 20;
    struct rlimit limit {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return min;
    return static_cast<std::size_t>(std::clamp(std::min(limit.rlim_cur, max) / 4, min, max));
  }

  void link(Descriptor& file) {
    file.older_ = newest_;
    file.newer_ = nullptr;
    (newest_ == nullptr ? oldest_ : newest_->newer_) = &file;
    newest_ = &file;
    ++count_;
  }
  void unlink(Descriptor& file) {
    (file.newer_ == nullptr ? newest_ : file.newer_->older_) = file.older_;
    (file.older_ == nullptr ? oldest_ : file.older_->newer_) = file.newer_;
    --count_;
  }
  std::shared_ptr<const UniqueFd> take(Descriptor& file) {
    unlink(file);
    return std::move(file.fd_);
  }

  std::mutex mutex_;
  // Guarded by mutex_.
  Descriptor *newest_ = nullptr, *oldest_ = nullptr;
  std::size_t count_ = 0;
};

std::shared_ptr<const UniqueFd> open_for_reading(const std::string& path, int flags) {
  while (true) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
    if (fd) return std::make_shared<const UniqueFd>(std::move(fd));
    const int error = errno;
    const bool too_many = error == EMFILE || error == ENFILE;
    if (too_many && OpenFiles::of_process().close_all()) continue;
    errno = error;
    return nullptr;
  }
}

std::shared_ptr<const UniqueFd> Descriptor::get() {
  return OpenFiles::of_process().use(*this);
}
void Descriptor::keep(std::shared_ptr<const UniqueFd> fd) {
  OpenFiles::of_process().keep(*this, std::move(fd));
}
void Descriptor::close() {
  OpenFiles::of_process().remove(*this);
}

}  // namespace levada
