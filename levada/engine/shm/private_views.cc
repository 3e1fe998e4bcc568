#include "levada/engine/shm/private_views.h"

#include <sys/resource.h>

#include <algorithm>
#include <system_error>

#include "levada/base/signals_blocked.h"
#include "levada/base/threads.h"
#include "levada/engine/shm/control.h"

namespace levada::shm {
namespace {

/// Above this share of written pages, catching writes and finding the pages costs more than copying the message.
constexpr std::size_t much_percent = 3;

bool overlap(const PrivateViews::View& one, const PrivateViews::View& other) {
  return one.rank == other.rank && one.interval.begin < other.interval.end && other.interval.begin < one.interval.end;
}

/// Returns whether this process's address space is limited. Private views reserve mappings that may never be filled,
/// which is not worth scarce address space.
bool address_space_is_rationed() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

PrivateViews::~PrivateViews() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool PrivateViews::start() {
  if (written_) return true;
  if (address_space_is_rationed()) return false;
  written_.emplace();
  if (!written_->refusal().empty()) return false;
  try {
    const SignalsBlocked blocked;
    thread_ = start_thread("private views", [this] { run(); });
  } catch (const EngineError&) {
    return false;
  }
  return true;
}

bool PrivateViews::map(std::size_t rank, std::size_t size) {
  if (maps_[rank].size() > 0) return true;
  try {
    maps_[rank] = Mapping((*files_)[rank], size, Mapping::Access::write_privately);
    // A forked child would see later messages in pages that its parent has not written.
    maps_[rank].hide_from_children();
  } catch (const EngineError&) {
    return false;
  }
  return true;
}

std::span<std::byte> PrivateViews::open(const View& view, std::size_t size) {
  std::unique_lock lock(mutex_);
  if (!files_ || refused_) return {};
  if (!start() || !map(static_cast<std::size_t>(view.rank), size)) refused_ = true;
  else clean_before(view, lock);
  return refused_ ? std::span<std::byte>() : view_of(view);
}

void PrivateViews::close(View view) noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_.push_back(std::move(view));
  }
  changed_.notify_all();
}

std::span<std::byte> PrivateViews::view_of(const View& view) const {
  return maps_[static_cast<std::size_t>(view.rank)].memory().subspan(view.interval.begin, view.interval.size());
}

void PrivateViews::clean_before(const View& view, std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !cleaning_ || !overlap(*cleaning_, view); });
  std::erase_if(closed_, [&](const View& closed) {
    if (!overlap(closed, view)) return false;
    clean(closed);
    return true;
  });
}

void PrivateViews::clean(const View& view) {
  const auto pages = written_->drop(view_of(view));
  // A page that was not dropped would show old writes in the next view.
  if (!pages) refused_ = true;
  else if (*pages * 100 > view.interval.size() / page_bytes * much_percent) view.channel->writes_much = true;
}

void PrivateViews::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !closed_.empty(); });
    if (stopping_) return;
    cleaning_ = std::move(closed_.back());
    closed_.pop_back();
    lock.unlock();
    clean(*cleaning_);
    lock.lock();
    cleaning_.reset();
    changed_.notify_all();
  }
}

}  // namespace levada::shm
