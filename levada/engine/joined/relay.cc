#include "levada/engine/joined/relay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"
#include "levada/engine/process_failure.h"

namespace levada::joined {
namespace {

constexpr Duration retry_interval = std::chrono::milliseconds(5);

Deadline deadline_after(Duration longest) {
  return longest == Duration::max() ? Deadline::never() : Deadline::after(longest);
}

/// Returns how this process has ended after a failure.
std::string ended_how() {
  const auto exception = ProcessFailure::exception();
  return exception.empty() ? "left because of an error" : fmt::format("ended with {}", exception);
}

}  // namespace

// ---- StatusBoard

void StatusBoard::show(const Status& status) {
  // Post on the far engine first: a rank on this host that sees the status may end the group before the second post.
  if (const auto far = far_.lock()) far->post(status);
  if (const auto near = near_.lock()) near->post(status);
}

void StatusBoard::post(const Status& status) {
  const std::lock_guard lock(mutex_);
  own_ = status;
  held_forward_ = nullptr;
  show(own_);
}

void StatusBoard::post_held(const void* forward, std::optional<Status> status) {
  const std::lock_guard lock(mutex_);
  const bool is_ending = own_.operation == Status::make(raised_operation, -1).operation;
  if (is_ending || (!status && held_forward_ != forward)) return;
  held_forward_ = status ? forward : nullptr;
  show(status.value_or(own_));
}

// ---- ForwarderWatch

bool ForwarderWatch::is_lost(const EndpointRef& endpoint) {
  if (!endpoint.engine->is_abandoned(*endpoint.channel)) return false;
  if (!since_) since_ = Clock::now();
  return Clock::now() - *since_ >= grace;
}

// ---- Forward

Forward::Forward(EndpointRef incoming, EndpointRef near, EndpointRef outgoing, int from, std::vector<int> to,
                 std::vector<int> near_ranks, std::shared_ptr<StatusBoard> board)
    : incoming_(std::move(incoming)),
      near_(std::move(near)),
      outgoing_(std::move(outgoing)),
      from_(from),
      to_(std::move(to)),
      near_ranks_(std::move(near_ranks)),
      board_(std::move(board)) {}

Forward::State Forward::advance() {
  try {
    return try_advance();
  } catch (const std::exception& error) {
    const bool has_ended = incoming_.engine->cause() || (near_ && near_.engine->cause());
    if (!has_ended) abort(error.what());
    return State::failed;
  }
}

Forward::State Forward::try_advance() {
  while (true) {
    if (message_.bytes.empty() && !receive()) {
      check_forwarder();
      return has_ended_ ? State::ended : before_.has_left() ? State::orphaned : State::idle;
    }
    if (outgoing_is_due_ && outgoing_.engine->try_publish(*outgoing_.channel, message_)) outgoing_is_due_ = false;
    if (near_is_due_ && !publish_near()) return State::blocked;
    if (outgoing_is_due_) return State::far_full;
    message_ = {};
    post_at_.reset();
    if (is_held_) show_held(std::nullopt);
  }
}

bool Forward::receive() {
  Received received = incoming_.engine->try_receive(*incoming_.channel);
  has_ended_ = received.ended;
  for (const EndpointRef& endpoint : {near_, outgoing_}) {
    if (has_ended_ && endpoint) endpoint.engine->close(*endpoint.channel, End::sending);
  }
  if (!received.message) return false;
  message_ = *std::move(received.message);
  in_near_memory_ = static_cast<bool>(received.landed);
  if (in_near_memory_) message_.hold = std::make_shared<const Block>(std::move(received.landed));
  near_is_due_ = static_cast<bool>(near_);
  outgoing_is_due_ = static_cast<bool>(outgoing_);
  return true;
}

void Forward::check_forwarder() {
  const int before = incoming_.channel->from();
  if (before == from_ || !before_.is_lost(incoming_)) return;
  throw_left(*incoming_.engine, before, fmt::format("it forwarded what rank {} sends", from_));
}

bool Forward::publish_near() {
  if (!in_near_memory_) {
    auto block = near_.engine->try_allocate(message_.bytes.size());
    if (!block) return false;
    copy_payload(block->memory().data(), message_.bytes.data(), message_.bytes.size());
    message_.bytes = block->memory().first(message_.bytes.size());
    message_.hold = std::make_shared<const Block>(*std::move(block));
    in_near_memory_ = true;
  }
  if (!near_.engine->try_publish(*near_.channel, message_)) return false;
  near_is_due_ = false;
  return true;
}

Forward::Obstacle Forward::obstacle() const {
  if (in_near_memory_) return {.full = near_.channel.get()};
  return {.bytes = message_.bytes.size()};
}

std::optional<Status> Forward::held_status() {
  Engine::Holder furthest{.rank = -1};
  const int own = incoming_.engine->info().rank;
  const auto look = [&](const EndpointRef& endpoint, const std::vector<int>* ranks) {
    if (!endpoint) return;
    for (Engine::Holder holder : endpoint.engine->holders(*endpoint.channel)) {
      if (ranks != nullptr) holder.rank = (*ranks)[static_cast<std::size_t>(holder.rank)];
      const int held = holder.not_received + holder.leased, max_held = furthest.not_received + furthest.leased;
      if (held > max_held || (held == max_held && holder.rank == own)) furthest = holder;
    }
  };
  if (near_is_due_) look(near_, &near_ranks_);
  else if (outgoing_is_due_) look(outgoing_, nullptr);
  if (furthest.rank < 0 || furthest.rank == own) return std::nullopt;
  return Status::make(forwarding_operation, -1, furthest.rank,
                      fmt::format("rank {} has not received {} of the messages", furthest.rank, furthest.not_received));
}

void Forward::post_held(Duration after) noexcept try {
  const auto now = Clock::now();
  if (after == Duration::max() || now < *(post_at_ = post_at_.value_or(now + after))) return;
  post_at_ = now + after;
  const auto status = held_status();
  if (status || is_held_) show_held(status);
} catch (const std::exception&) {  // advance() sees the end of the group, too
}

void Forward::show_held(std::optional<Status> status) noexcept try {
  is_held_ = status.has_value();
  board_->post_held(this, std::move(status));
} catch (const std::exception&) {  // as above
}

std::string Forward::explain(Duration waited) const try {
  return explain_wait(*incoming_.engine, fmt::format("leaving (it still forwards to rank {})", fmt::join(to_, ", ")),
                      from_, waited);
} catch (const Error& error) {  // the group has ended
  return error.what();
}

void Forward::abort_leaving(std::string_view why) noexcept {
  abort(fmt::format("{} what rank {} sends to rank {}", why, from_, fmt::join(to_, ", ")));
}

void Forward::abort(std::string_view reason) noexcept {
  if (near_) near_.engine->abort(reason);
  incoming_.engine->abort(reason);
}

// ---- FarChanges

void FarChanges::notify() {
  count_.notify();
  if (has_alarms_) ring();
  std::shared_ptr<const std::function<void()>> hook;
  {
    const std::lock_guard lock(mutex_);
    hook = hook_;
  }
  if (hook) (*hook)();
}

void FarChanges::set_hook(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  hook_ = hook ? std::make_shared<const std::function<void()>>(std::move(hook)) : nullptr;
}

void FarChanges::ring() {
  const std::lock_guard lock(mutex_);
  for (Alarm* const alarm : alarms_) {
    alarm->rung_ = true;
    alarm->near_.wake();
  }
}

FarChanges::Alarm::Alarm(FarChanges& changes, Engine& near) : changes_(changes), near_(near) {
  const std::lock_guard lock(changes_.mutex_);
  changes_.alarms_.push_back(this);
  changes_.has_alarms_ = true;
}

FarChanges::Alarm::~Alarm() {
  const std::lock_guard lock(changes_.mutex_);
  std::erase(changes_.alarms_, this);
  changes_.has_alarms_ = !changes_.alarms_.empty();
}

// ---- Relay

Relay::~Relay() {
  if (!token_.valid()) {
    static_cast<void>(thread_.release());  // the thread is the parent's
    return;
  }
  if (!thread_) return;
  {
    std::unique_lock lock(mutex_);
    if (const auto why = wait_for_ends(lock); !why.empty()) {
      for (const auto& forward : forwards_) forward->abort_leaving(why);
    }
    stopping_ = true;
  }
  wake();
  thread_->join();
}

std::string Relay::wait_for_ends(std::unique_lock<std::mutex>& lock) {
  const auto begin = Clock::now();
  const auto last = Deadline::after(options_.leave_timeout);
  Reminder reminder(options_.remind_after);
  bool has_asked = false;  // whether the sender has been asked for its status; the answer arrives later
  while (!forwards_.empty()) {
    // A group may fail during this wait.
    const bool has_failed = ProcessFailure::exists();
    const auto failed = has_failed ? ProcessFailure::leave_deadline(options_.failed_leave_timeout) : last;
    const auto deadline = failed.at() < last.at() ? failed : last;
    if (deadline.expired()) {
      return has_failed ? fmt::format("it has {}, and still forwards", ended_how())
                        : fmt::format("it has left, and after its leave_timeout of {} still forwards",
                                      format_duration(options_.leave_timeout));
    }
    if (reminder.next(deadline).expired()) {
      auto text = forwards_.front()->explain(Clock::now() - begin);
      if (std::exchange(has_asked, !has_asked)) reminder.write_if_due([&] { return text; });
    }
    lock.unlock();
    const bool is_interrupted = options_.is_interrupted && options_.is_interrupted();
    lock.lock();
    if (is_interrupted && !forwards_.empty()) return "it was interrupted while it was leaving and still forwarded";
    changed_.wait_for(lock, std::min(deadline.remaining(), WaitFor::poll_interval), [&] { return forwards_.empty(); });
  }
  return {};
}

void Relay::wake() {
  changes_->count().notify();
  changes_->ring();
}

void Relay::add(std::unique_ptr<Forward> forward) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_) thread_ = std::make_unique<std::thread>(start_thread("forwarding messages", [this] { run(); }));
    forwards_.push_back(std::move(forward));
  }
  wake();
}

void Relay::run() {
  while (true) {
    const std::uint64_t seen = changes_->count().count();
    const PendingForwards unfinished = advance_all();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    for (Forward* const forward : unfinished.waiting) forward->post_held(options_.heartbeat);
    if (unfinished.blocked.empty()) changes_->count().wait(seen, deadline_after(unfinished.longest));
    else wait_near(unfinished, seen);
  }
}

Relay::PendingForwards Relay::advance_all() {
  using Place = std::list<std::unique_ptr<Forward>>::iterator;
  std::vector<Place> places;
  {
    const std::lock_guard lock(mutex_);
    for (auto place = forwards_.begin(); place != forwards_.end(); ++place) places.push_back(place);
  }
  PendingForwards unfinished;
  std::list<std::unique_ptr<Forward>> over;  // outlives the lock
  for (const Place place : places) {
    const auto state = (*place)->advance();
    const bool is_blocked = state == Forward::State::blocked;
    if (is_blocked) unfinished.blocked.push_back(place->get());
    if (is_blocked || state == Forward::State::far_full) unfinished.waiting.push_back(place->get());
    if (state == Forward::State::far_full) unfinished.longest = std::min(unfinished.longest, options_.heartbeat);
    if (state == Forward::State::orphaned) unfinished.longest = WaitFor::poll_interval;
    if (state != Forward::State::ended && state != Forward::State::failed) continue;
    const std::lock_guard lock(mutex_);
    over.splice(over.end(), forwards_, place);
  }
  over.clear();
  changed_.notify_all();
  return unfinished;
}

void Relay::wait_near(const PendingForwards& unfinished, std::uint64_t seen) {
  Engine& near = unfinished.blocked.front()->near();
  std::vector<Channel*> full;
  std::size_t bytes = 0;
  Duration longest = std::min(options_.heartbeat, unfinished.longest);
  for (Forward* const forward : unfinished.blocked) {
    if (&forward->near() != &near) {
      // A wait covers only one group; forwards of other groups are retried soon.
      longest = std::min<Duration>(longest, retry_interval);
      continue;
    }
    const auto obstacle = forward->obstacle();
    if (obstacle.full != nullptr) full.push_back(obstacle.full);
    else bytes = bytes == 0 ? obstacle.bytes : std::min(bytes, obstacle.bytes);
  }
  const FarChanges::Alarm alarm(*changes_, near);
  if (changes_->count().count() != seen) return;
  try {
    near.wait({.publish = full, .allocate = bytes, .stop = &alarm.rung()}, deadline_after(longest));
  } catch (const Error&) {  // advance() sees the end of its group, too
  }
}

}  // namespace levada::joined
