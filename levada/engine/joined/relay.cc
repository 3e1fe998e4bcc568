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

namespace levada::joined {
namespace {

constexpr Duration retry_interval = std::chrono::milliseconds(5);

Deadline deadline_after(Duration longest) {
  return longest == Duration::max() ? Deadline::never() : Deadline::after(longest);
}

}  // namespace

// ---- ForwarderWatch

bool ForwarderWatch::is_lost(const Port& leg) {
  if (!leg.engine->is_abandoned(*leg.channel)) return false;
  if (!since_) since_ = Clock::now();
  return Clock::now() - *since_ >= grace;
}

// ---- Forward

Forward::Forward(Port incoming, Port near, Port outgoing, int from, std::vector<int> to)
    : incoming_(std::move(incoming)),
      near_(std::move(near)),
      outgoing_(std::move(outgoing)),
      from_(from),
      to_(std::move(to)) {}

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
    if (message_.bytes.empty() && !take_in()) {
      expect_forwarder();
      return has_ended_ ? State::ended : before_.has_left() ? State::orphaned : State::idle;
    }
    if (outgoing_is_due_ && outgoing_.engine->try_publish(*outgoing_.channel, message_)) outgoing_is_due_ = false;
    if (near_is_due_ && !put_near()) return State::blocked;
    if (outgoing_is_due_) return State::idle;
    message_ = {};
  }
}

bool Forward::take_in() {
  Received received = incoming_.engine->try_receive(*incoming_.channel);
  has_ended_ = received.ended;
  for (const Port& port : {near_, outgoing_}) {
    if (has_ended_ && port) port.engine->close(*port.channel, End::sending);
  }
  if (!received.message) return false;
  message_ = *std::move(received.message);
  in_near_memory_ = static_cast<bool>(received.landed);
  if (in_near_memory_) message_.hold = std::make_shared<const Block>(std::move(received.landed));
  near_is_due_ = static_cast<bool>(near_);
  outgoing_is_due_ = static_cast<bool>(outgoing_);
  return true;
}

void Forward::expect_forwarder() {
  const int before = incoming_.channel->from();
  if (before == from_ || !before_.is_lost(incoming_)) return;
  throw_left(*incoming_.engine, before, fmt::format("it forwarded what rank {} sends", from_));
}

bool Forward::put_near() {
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

std::string Forward::explain(Duration waited) const try {
  return explain_wait(*incoming_.engine, fmt::format("leaving (it still forwards to rank {})", fmt::join(to_, ", ")),
                      from_, waited);
} catch (const Error& error) {  // the group has ended meanwhile
  return error.what();
}

void Forward::abort_leaving(Duration waited, bool is_interrupted) noexcept {
  const auto forwards = fmt::format("what rank {} sends to rank {}", from_, fmt::join(to_, ", "));
  abort(is_interrupted ? fmt::format("it was interrupted while it was leaving and still forwarded {}", forwards)
                       : fmt::format("it has left, and after {} still forwards {}; raise leave_timeout",
                                     format_duration(waited), forwards));
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
    const auto begin = Clock::now();
    if (const Waited waited = wait_for_ends(lock); waited != Waited::for_all) {
      for (const auto& forward : forwards_) {
        forward->abort_leaving(Clock::now() - begin, waited == Waited::until_interrupted);
      }
    }
    stopping_ = true;
  }
  wake();
  thread_->join();
}

Relay::Waited Relay::wait_for_ends(std::unique_lock<std::mutex>& lock) {
  const auto begin = Clock::now();
  const Deadline deadline = Deadline::after(options_.leave_timeout);
  Reminder reminder(options_.remind_after);
  bool has_asked = false;  // the sender, which answers later, what it does
  while (!forwards_.empty()) {
    if (deadline.expired()) return Waited::too_long;
    if (reminder.next(deadline).expired()) {
      auto text = forwards_.front()->explain(Clock::now() - begin);
      if (std::exchange(has_asked, !has_asked)) reminder.write_if_due([&] { return text; });
    }
    lock.unlock();
    const bool is_interrupted = options_.is_interrupted && options_.is_interrupted();
    lock.lock();
    if (is_interrupted && !forwards_.empty()) return Waited::until_interrupted;
    changed_.wait_for(lock, std::min(deadline.remaining(), WaitFor::poll_interval), [&] { return forwards_.empty(); });
  }
  return Waited::for_all;
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
    const Unfinished unfinished = advance_all();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (unfinished.blocked.empty()) changes_->count().wait(seen, deadline_after(unfinished.longest));
    else wait_near(unfinished, seen);
  }
}

Relay::Unfinished Relay::advance_all() {
  using Place = std::list<std::unique_ptr<Forward>>::iterator;
  std::vector<Place> places;
  {
    const std::lock_guard lock(mutex_);
    for (auto place = forwards_.begin(); place != forwards_.end(); ++place) places.push_back(place);
  }
  Unfinished unfinished;
  std::list<std::unique_ptr<Forward>> over;  // outlives the lock
  for (const Place place : places) {
    const auto state = (*place)->advance();
    if (state == Forward::State::blocked) unfinished.blocked.push_back(place->get());
    if (state == Forward::State::orphaned) unfinished.longest = WaitFor::poll_interval;
    if (state != Forward::State::ended && state != Forward::State::failed) continue;
    const std::lock_guard lock(mutex_);
    over.splice(over.end(), forwards_, place);
  }
  over.clear();
  changed_.notify_all();
  return unfinished;
}

void Relay::wait_near(const Unfinished& unfinished, std::uint64_t seen) {
  Engine& near = unfinished.blocked.front()->near();
  std::vector<Channel*> full;
  std::size_t bytes = 0;
  Duration longest = std::min(options_.heartbeat, unfinished.longest);
  for (Forward* const forward : unfinished.blocked) {
    if (&forward->near() != &near) {
      // A wait is one group's; those of other groups are retried soon.
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
  } catch (const Error&) {  // its group has ended, which advance() finds as well
  }
}

}  // namespace levada::joined
