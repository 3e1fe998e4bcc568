// Writable views of other ranks' memory. Writes are visible only to this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "levada/base/unique_fd.h"
#include "levada/engine/intervals.h"
#include "levada/engine/shm/channel_state.h"
#include "levada/engine/shm/memory.h"
#include "levada/engine/shm/written_pages.h"

namespace levada::shm {

/// Maps each rank's memory a second time, privately (copy-on-write). After a view is closed, a dedicated thread finds
/// and drops the pages written in it, unless open() of an overlapping view does so first. Thread-safe; not usable in a
/// forked child.
class PrivateViews {
 public:
  /// `files` holds each rank's memory. If null, there are no views.
  explicit PrivateViews(std::shared_ptr<const std::vector<UniqueFd>> files)
      : files_(std::move(files)), maps_(files_ ? files_->size() : 0) {}
  ~PrivateViews();
  PrivateViews(const PrivateViews&) = delete;
  PrivateViews& operator=(const PrivateViews&) = delete;

  /// The whole pages of a rank's memory that contain a message. A page is in at most one view at a time.
  struct View {
    int rank = 0;
    Interval interval;
    std::shared_ptr<ShmChannelState> channel;  ///< the message's channel, marked if much of the view was written
  };
  /// Returns the pages of `view`, writable. `size` is the size of the rank's memory. Returns an empty span if the
  /// system cannot find written pages or map that much memory; all later calls then return one, too.
  std::span<std::byte> open(const View& view, std::size_t size);
  /// Closes a view that is no longer used.
  void close(View view) noexcept;

 private:
  bool start();
  bool map(std::size_t rank, std::size_t size);
  std::span<std::byte> view_of(const View& view) const;
  void clean(const View& view);
  void clean_before(const View& view, std::unique_lock<std::mutex>& lock);
  void run();

  std::shared_ptr<const std::vector<UniqueFd>> files_;
  std::vector<Mapping> maps_;  ///< by rank; created on first use
  std::optional<WrittenPages> written_;
  std::thread thread_;
  std::atomic<bool> refused_ = false;

  std::mutex mutex_;  // guards the members below, and the creation of those above
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<View> closed_;
  std::optional<View> cleaning_;  ///< the view that the thread is cleaning
};

}  // namespace levada::shm
