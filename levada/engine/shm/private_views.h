// Views of other ranks' memory in which what this process writes is its own.
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

/// Maps each rank's memory once more, privately: a write copies the page that it hits. The written pages of a view
/// that is closed are found and dropped on a thread of its own, or by open() of a view of them before that. Any thread;
/// not in a forked child.
class PrivateViews {
 public:
  /// `files`: each rank's memory; without them there are no views.
  explicit PrivateViews(std::shared_ptr<const std::vector<UniqueFd>> files)
      : files_(std::move(files)), maps_(files_ ? files_->size() : 0) {}
  ~PrivateViews();
  PrivateViews(const PrivateViews&) = delete;
  PrivateViews& operator=(const PrivateViews&) = delete;

  /// Whole pages of a rank's memory in which a message lies. No two views of a page overlap in time.
  struct View {
    int rank = 0;
    Interval interval;
    std::shared_ptr<ShmChannelState> channel;  ///< on which it came; it is marked when much of it was written
  };
  /// What the pages of `view` hold, to be written; `size` is that of the rank's memory. Empty where the system does not
  /// let written pages be found or so much be mapped: then there are no views at all.
  std::span<std::byte> open(const View& view, std::size_t size);
  /// Nobody looks at the view any more.
  void close(View view) noexcept;

 private:
  bool start();
  bool map(std::size_t rank, std::size_t size);
  std::span<std::byte> view_of(const View& view) const;
  void clean(const View& view);
  void clean_before(const View& view, std::unique_lock<std::mutex>& lock);
  void run();

  std::shared_ptr<const std::vector<UniqueFd>> files_;
  std::vector<Mapping> maps_;  ///< by rank; made when first used
  std::optional<WrittenPages> written_;
  std::thread thread_;
  std::atomic<bool> refused_ = false;

  std::mutex mutex_;  // guards what follows, and the making of what precedes
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<View> closed_;
  std::optional<View> cleaning_;  ///< by the thread
};

}  // namespace levada::shm
