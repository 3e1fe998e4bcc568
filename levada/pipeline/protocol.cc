#include "levada/pipeline/protocol.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/assert.h"

namespace levada::pipeline::protocol {
namespace {

bool is_end(Ending ending) {
  return ending == Ending::ended || ending == Ending::left;
}

[[noreturn]] void throw_corrupt(const std::string& what) {
  throw CorruptMessage(0, "a process of the pipeline sent an invalid message: " + what);
}

}  // namespace

void Items::check() const {
  constexpr std::uint32_t max_items = 1 << 20;
  if (count > max_items) throw_corrupt(fmt::format("{} items in a message", count));
  if (!marks.empty() && marks.size() != count) throw_corrupt(fmt::format("{} marks for {} items", marks.size(), count));
}

// ---- ProcessState

void ProcessState::apply(const Command& command) {
  if (command.number != applied_ + 1)
    throw_corrupt(fmt::format("command {} after command {}", command.number, applied_));
  if (over_) throw_corrupt("a command after the shutdown");
  applied_ = command.number;
  if (const auto* reset = std::get_if<Reset>(&command.what)) {
    paused_ = false;
    reset_number_ = command.number;
    reset_ = *reset;
  } else if (std::holds_alternative<Pause>(command.what)) {
    paused_ = true;
  } else if (std::holds_alternative<Resume>(command.what)) {
    paused_ = false;
  } else if (std::holds_alternative<Shutdown>(command.what)) {
    over_ = true;
  }
}

Decision ProcessState::decide(std::uint64_t reset) const {
  if (reset == reset_number_) return Decision::use;
  return reset < reset_number_ ? Decision::drop : Decision::keep;
}

// ---- RoundRobinAssigner

RoundRobinAssigner::RoundRobinAssigner(int workers, const Reset& reset)
    : workers_(workers), number_(reset.dispatcher.number), first_(static_cast<std::size_t>(workers), 0) {
  const std::size_t known = std::min(first_.size(), reset.workers.size());
  for (std::size_t w = 0; w < known; ++w) {
    first_[w] = reset.workers[w].num_inputs * workers + static_cast<std::int64_t>(w);
  }
}

bool RoundRobinAssigner::wanted() const {
  return number_ >= first_[static_cast<std::size_t>(worker())];
}

std::int64_t RoundRobinAssigner::unwanted() const {
  return std::max<std::int64_t>(std::ranges::min(first_) - number_, 0);
}

bool RoundRobinAssigner::has_caught_up() const {
  return std::all_of(first_.begin(), first_.end(), [this](std::int64_t first) { return number_ > first - workers_; });
}

// ---- WorkerInput

void WorkerInput::apply(const Items& items) {
  const std::int64_t expected = (num_inputs_ + at_hand_) * workers_ + worker_;
  if (ending_ != Ending::none) throw_corrupt("items after the end");
  if (items.count > 0 && items.first != expected) {
    throw_corrupt(fmt::format("item {} instead of item {}", items.first, expected));
  }
  at_hand_ += items.count;
  ending_ = items.ending;
}

void WorkerInput::pull() {
  LEVADA_ASSERT(at_hand_ > 0, "a pulled item has arrived");
  --at_hand_;
  ++num_inputs_;
}

void WorkerInput::restore(std::int64_t num_inputs, bool pulled_ending) {
  num_inputs_ = num_inputs;
  pulled_ending_ = pulled_ending;
}

// ---- OrderedMerge

void OrderedMerge::apply(int worker, const Items& items) {
  WorkerQueue& queue = queues_[static_cast<std::size_t>(worker)];
  if (queue.ending != Ending::none) throw_corrupt("items after the end");
  if (items.first != queue.sent)
    throw_corrupt(fmt::format("item {} of a worker instead of item {}", items.first, queue.sent));
  std::int64_t smallest = queue.reached;
  for (const std::int64_t mark : items.marks) {
    if (mark < smallest) throw_corrupt(fmt::format("mark {} after {}", mark, smallest));
    smallest = mark;
  }
  if (items.reached < smallest) throw_corrupt(fmt::format("mark {} after {}", items.reached, smallest));
  if (queue.at == queue.marks.size()) {
    queue.marks = items.marks;
    queue.at = 0;
  } else {
    queue.marks.insert(queue.marks.end(), items.marks.begin(), items.marks.end());
  }
  queue.sent += items.count;
  queue.reached = items.reached;
  queue.ending = items.ending;
}

OrderedMerge::Step OrderedMerge::next() {
  do {
    const WorkerQueue& queue = queues_[static_cast<std::size_t>(position_.worker)];
    if (queue.at < queue.marks.size()) {
      if (queue.marks[queue.at] <= position_.mark) return Step::pull;
    } else if (queue.ending == Ending::failed && queue.reached <= position_.mark) {
      return Step::failed;
    } else if (queue.ending == Ending::none && queue.reached <= position_.mark) {
      return Step::wait;
    }
  } while (advance());
  return Step::ended;
}

bool OrderedMerge::advance() {
  if (++position_.worker < static_cast<int>(queues_.size())) return true;
  // Wrapped around: continue with the smallest mark that any item can have.
  std::optional<std::int64_t> smallest;
  for (const WorkerQueue& queue : queues_) {
    if (queue.at == queue.marks.size() && is_end(queue.ending)) continue;
    const std::int64_t mark = queue.at < queue.marks.size() ? queue.marks[queue.at] : queue.reached;
    smallest = std::min(smallest.value_or(mark), mark);
  }
  if (!smallest) {
    --position_.worker;
    return false;
  }
  position_ = {std::max(*smallest, position_.mark + 1), 0};
  return true;
}

bool OrderedMerge::any_left() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const WorkerQueue& queue) { return queue.ending == Ending::left; });
}

void OrderedMerge::pulled() {
  WorkerQueue& queue = queues_[static_cast<std::size_t>(position_.worker)];
  LEVADA_ASSERT(queue.at < queue.marks.size() && queue.marks[queue.at] <= position_.mark,
                "an item is pulled in its turn");
  ++queue.at;
  ++queue.num_outputs;
  ++num_outputs_;
}

// ---- CommandLog

Command CommandLog::issue(decltype(Command::what) what) {
  return {++issued_, std::move(what)};
}

void CommandLog::apply(int process, const Ack& ack) {
  auto& last = acked_[static_cast<std::size_t>(process)];
  if (ack.number != last + 1 || ack.number > issued_) {
    throw_corrupt(
        fmt::format("an acknowledgement of command {} after that of command {} of {}", ack.number, last, issued_));
  }
  last = ack.number;
}

bool CommandLog::all_acked() const {
  return std::all_of(acked_.begin(), acked_.end(), [this](std::uint64_t last) { return last == issued_; });
}

}  // namespace levada::pipeline::protocol
