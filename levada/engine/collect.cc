#include "levada/engine/collect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"

namespace levada {
namespace {

/// Returns the text of a Status field, which another process may not have null-terminated.
template <std::size_t N>
std::string_view text_of(const std::array<char, N>& field) {
  return {field.data(), static_cast<std::size_t>(std::find(field.begin(), field.end(), '\0') - field.begin())};
}

bool is_in(const Status& status, std::string_view operation) {
  return text_of(status.operation) == operation;
}

bool is_blank(const Status& status) {
  return text_of(status.operation).empty();
}

/// Shorter silences are normal on a network or a busy host.
constexpr std::uint32_t min_silence_ms = 1000;

/// Returns "feed step 17, corpus.jsonl, waiting for rank 2, for 29.8 s". Omits the age if the status is from another
/// host's clock.
std::string describe(const Status& status, bool same_host) {
  const auto silence = format_duration(std::chrono::milliseconds(status.unanswered_ms));
  if (is_blank(status) && status.unanswered_ms > 0) return fmt::format("has not answered for {}", silence);
  if (is_blank(status)) return "has posted nothing";
  std::string text(text_of(status.operation));
  if (status.step >= 0) text += fmt::format(" step {}", status.step);
  if (const auto detail = text_of(status.detail); !detail.empty()) text += fmt::format(", {}", detail);
  if (status.waiting_for >= 0) text += fmt::format(", waiting for rank {}", status.waiting_for);
  const auto since = std::chrono::duration_cast<Duration>(std::chrono::nanoseconds(status.since_ns));
  const Duration age = Clock::now().time_since_epoch() - since;
  if (same_host && age >= Duration::zero()) text += fmt::format(", for {}", format_duration(age));
  if (status.unanswered_ms >= min_silence_ms) text += fmt::format("; it has not answered for {}", silence);
  return text;
}

/// Returns "; rank 0: ...; rank 2: ...": the status of `rank`, then of the rank that it waits for, and so on, until a
/// rank waits for no other, has already been named, or many ranks have been named. Follows this rank only if it waits
/// for a rank to which it forwards. If a named rank on another host does not answer, also names the other ranks on this
/// host, which may forward its answers and messages, and the other ranks on that host. If the ranks wait in a cycle,
/// also names the other ranks on their hosts. `receives`: whether this rank waits for a message from `rank`.
std::string follow(Engine& engine, int rank, bool receives) {
  constexpr std::size_t max_named = 8;
  const auto& info = engine.info();
  const auto host = [&](int r) { return info.host_of[static_cast<std::size_t>(r)]; };
  std::vector<int> named;
  std::string text;
  Status before;
  bool has_silent = false;
  while (rank >= 0 && rank < info.size && std::find(named.begin(), named.end(), rank) == named.end()) {
    const Status status = engine.status(rank);
    if (rank == info.rank && !named.empty() && !is_in(status, forwarding_operation)) {
      if (receives && is_in(before, full_operation))
        text += fmt::format("; rank {} has received them: is rank {} stopped?", rank, named.back());
      break;
    }
    text += fmt::format("; rank {}: {}", rank, describe(status, host(rank) == host(info.rank)));
    named.push_back(rank);
    has_silent |= host(rank) != host(info.rank) && status.unanswered_ms >= min_silence_ms;
    if (named.size() > max_named) break;
    rank = status.waiting_for;
    before = status;
  }
  // Another rank of their hosts may hold up ranks that wait for each other, or that do not answer.
  const auto is_named = [&](int each) { return std::find(named.begin(), named.end(), each) != named.end(); };
  const bool is_circle = rank >= 0 && rank < info.size && (rank == info.rank || is_named(rank));
  const std::vector<int> followed = named;
  const auto is_suspect = [&](int beside) {
    if ((has_silent || rank == info.rank) && host(beside) == host(info.rank)) return true;
    return (has_silent || is_circle) &&
           std::ranges::any_of(followed, [&](int each) { return host(each) == host(beside); });
  };
  for (int beside = 0; beside < info.size && named.size() <= max_named; ++beside) {
    if (is_named(beside) || beside == info.rank || !is_suspect(beside)) continue;
    const Status status = engine.status(beside);
    if (is_blank(status) && status.unanswered_ms == 0) continue;
    text += fmt::format("; rank {}: {}", beside, describe(status, host(beside) == host(info.rank)));
    named.push_back(beside);
  }
  return text;
}

/// Returns "2 not received, 1 still leased".
std::string describe(const Engine::Holder& holder) {
  std::vector<std::string> parts;
  if (holder.not_received > 0) parts.push_back(fmt::format("{} not received", holder.not_received));
  if (holder.leased > 0) parts.push_back(fmt::format("{} still leased", holder.leased));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string of_step(Engine& engine) {
  const Status mine = engine.status(engine.info().rank);
  return mine.step >= 0 ? fmt::format(" for step {}", mine.step) : std::string();
}

/// Returns "rank 3 waited 30.0 s in feed for step 17".
std::string waited_in(Engine& engine, std::string_view what, Duration waited) {
  return fmt::format("rank {} waited {} in {}{}", engine.info().rank, format_duration(waited), what, of_step(engine));
}

std::string explain_full_window(Engine& engine, Channel& channel, std::string_view what, Duration waited) {
  std::string text = fmt::format("{} for room to send to ranks {}, where at most {} messages may be under way",
                                 waited_in(engine, what, waited), fmt::join(channel.to(), ", "), channel.window());
  for (const auto& holder : engine.holders(channel)) {
    if (holder.not_received < channel.window()) continue;
    text += fmt::format("; rank {} holds {}{}", holder.rank, describe(holder), follow(engine, holder.rank, false));
  }
  return text;
}

}  // namespace

Reminder::Reminder(Duration first)
    : Reminder(first, [](const std::string& text) {
        const std::string line = fmt::format("levada: {}\n", printable_lines(text));  // it may quote a file name
        std::fwrite(line.data(), 1, line.size(), stderr);
      }) {}

Reminder::Reminder(Duration first, std::function<void(const std::string&)> write)
    : interval_(first), due_(write ? Deadline::after(first) : Deadline::never()), write_(std::move(write)) {}

void Reminder::write_if_due(const std::function<std::string()>& explain) {
  if (!due_.expired()) return;
  due_ = Deadline::after(interval_);  // so that the wait has doubled by then
  interval_ *= 2;
  write_(explain() + "; still waiting");
}

Woken Reminder::wait(Engine& engine, const WaitFor& conditions, Deadline deadline,
                     const std::function<std::string()>& explain) {
  for (;;) {
    const Woken woken = engine.wait(conditions, next(deadline));
    if (woken != Woken::timeout || deadline.expired() || !due_.expired()) return woken;
    write_if_due(explain);
  }
}

std::function<void()> asking_statuses(Engine& engine, const std::function<void()>* poll) {
  return [&engine, poll, ask_at = Clock::now() + WaitFor::poll_interval]() mutable {
    if (const auto now = Clock::now(); now >= ask_at) {
      engine.ask_statuses();
      ask_at = now + std::chrono::seconds(1);
    }
    if (poll != nullptr && *poll) (*poll)();
  };
}

Block allocate(Engine& engine, std::size_t bytes, Deadline deadline, std::string_view what,
               std::span<Channel* const> sent, const std::function<void()>* poll) {
  const auto begin = Clock::now();
  const auto explain = [&] { return explain_full_memory(engine, bytes, what, Clock::now() - begin, sent); };
  Reminder reminder;
  for (;;) {
    if (auto block = engine.try_allocate(bytes)) return *std::move(block);
    if (reminder.wait(engine, {.allocate = bytes, .poll = poll}, deadline, explain) == Woken::timeout)
      throw Timeout(explain());
  }
}

void publish(Engine& engine, Channel& channel, Block block, std::size_t bytes, Deadline deadline, std::string_view what,
             const std::function<void()>* poll) {
  const auto begin = Clock::now();
  const auto explain = [&] { return explain_full_window(engine, channel, what, Clock::now() - begin); };
  Reminder reminder;
  Channel* const channels[] = {&channel};
  while (!engine.try_publish(channel, block, bytes)) {
    if (reminder.wait(engine, {.publish = channels, .poll = poll}, deadline, explain) == Woken::timeout)
      throw Timeout(explain());
  }
}

int rank_without_room(Engine& engine, Channel& channel) {
  for (const auto& holder : engine.holders(channel)) {
    if (holder.not_received >= channel.window()) return holder.rank;
  }
  return -1;
}

std::optional<Lease> receive(Engine& engine, Channel& channel, Deadline deadline, std::string_view what,
                             const std::function<void()>* poll) {
  const auto begin = Clock::now();
  const auto explain = [&] { return explain_wait(engine, what, channel.from(), Clock::now() - begin); };
  Reminder reminder;
  Channel* const channels[] = {&channel};
  for (;;) {
    auto received = engine.try_receive(channel);
    if (received.message || received.ended) return std::move(received.message);
    if (reminder.wait(engine, {.receive = channels, .poll = poll}, deadline, explain) == Woken::timeout)
      throw Timeout(explain());
  }
}

void check_group(Engine& engine) {
  engine.wait({}, Deadline::now());
}

std::string explain_full_memory(Engine& engine, std::size_t bytes, std::string_view what, Duration waited,
                                std::span<Channel* const> sent) {
  std::string text =
      fmt::format("{} for memory for a block of {}", waited_in(engine, what, waited), format_bytes(bytes));
  bool held = false;
  for (Channel* channel : sent) {
    for (const auto& holder : engine.holders(*channel)) {
      text += fmt::format("; rank {} holds messages: {}", holder.rank, describe(holder));
      held = true;
    }
  }
  return text + (held ? "; end leases sooner, or give the engine more memory" : "; give the engine more memory");
}

void OperationStatus::post(int waiting_for, std::string_view detail, std::int64_t step) {
  if (!before_) before_ = engine_.status(engine_.info().rank);
  engine_.post(Status::make(operation_, step < 0 ? before_->step : step, waiting_for, detail));
}

void OperationStatus::end() noexcept {
  if (!before_) return;
  try {
    const bool is_own = engine_.status(engine_.info().rank).operation == Status::make(operation_, -1).operation;
    if (is_own) engine_.post(is_blank(*before_) ? Status::make(computing_operation, -1) : *before_);
  } catch (const Error&) {
    // The group has ended; no rank reads the board any more.
  }
  before_.reset();
}

std::optional<std::string> raised_by(Engine& engine, int rank) {
  const Status status = engine.status(rank);
  if (!is_in(status, raised_operation)) return std::nullopt;
  return std::string(text_of(status.detail));
}

void await_reason(Engine& engine, int rank, const std::function<void()>* poll) {
  const auto deadline = Deadline::after(reason_timeout);
  while (!raised_by(engine, rank) && !deadline.expired()) {
    engine.wait({.poll = poll}, Deadline::after(std::chrono::milliseconds(25)));
  }
}

void throw_left(Engine& engine, int rank, std::string_view what) {
  check_group(engine);
  std::string how;
  if (const auto raised = raised_by(engine, rank)) {
    const std::int64_t step = engine.status(rank).step;
    how = fmt::format("{} with {}", step < 0 ? std::string() : fmt::format(" at step {}", step), *raised);
  }
  throw PeerLost(rank, fmt::format("rank {} left{} before {}", rank, how, what));
}

std::string explain_wait(Engine& engine, std::string_view what, int waiting_for, Duration waited) {
  const auto text = waited_in(engine, what, waited);
  return waiting_for < 0 ? text
                         : fmt::format("{} from rank {}{}", text, waiting_for, follow(engine, waiting_for, true));
}

}  // namespace levada
