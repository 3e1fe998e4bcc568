#include "levada/reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

/// Results lie in the engine's memory, which has been touched before, while the heap gets it from the system page by
/// page. Small ones share so many bytes, so that one that is kept does not hold many more.
constexpr std::size_t shared_bytes = std::size_t{64} << 10;
constexpr std::size_t alignment = 64;

constexpr const char* interrupted = "a rank was interrupted in a reduction";

/// The Reducer is being destroyed.
struct Stopped {};

}  // namespace

Reducer::Reducer(std::shared_ptr<Engine> group, int window, Duration timeout, std::function<void()> poll)
    : group_(std::move(group)),
      poll_(std::move(poll)),
      timeout_(timeout),
      of_all_(size()),
      of_own_(1),
      shares_memory_(group_->shares_memory()) {
  if (poll_) caller_poll_ = [this] { poll_caller(); };
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  for (const int from : all) to_all_.push_back({group_->open(from, all, window), {}});
  if (!shares_memory_) {
    // Everybody would get everybody's pieces. One to itself is a channel of its own at either end of the list.
    for (const int from : all) {
      for (const int to : all) {
        if (from != rank() && to != rank()) continue;
        const std::shared_ptr<Channel> channel = group_->open(from, {to}, window);
        if (from == rank()) sending_.push_back(channel);
        if (to == rank()) receiving_.push_back({channel, {}});
      }
    }
  }
  thread_ = start_thread("reducing", [this] { run(); });
}

Reducer::~Reducer() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  launched_.notify_all();
  group_->wake();
  thread_.join();
}

template <typename Work>
auto Reducer::interruptible(Work work) {
  try {
    return work();
  } catch (const EngineError&) {
    if (interruption_) std::rethrow_exception(std::exchange(interruption_, nullptr));
    throw;
  }
}

Contribution Reducer::contribution(CollectiveSpec spec, std::size_t bytes, std::size_t inputs) {
  return interruptible([&] {
    Block block = levada::allocate(*group_, Contribution::block_bytes(bytes, inputs), Deadline::after(timeout_),
                                   to_string(spec.collective), {}, &caller_poll_);
    return Contribution(std::move(block), size(), std::move(spec));
  });
}

std::shared_ptr<const Outcome> Reducer::launch(std::vector<Contribution> contributions, bool awaited) {
  Task task{std::move(contributions), std::make_shared<Outcome>()};
  const std::shared_ptr<const Outcome> outcome = task.outcome;
  {
    const std::lock_guard lock(mutex_);
    awaited = awaited && tasks_.empty() && !busy_;
    if (awaited) busy_ = true;
    else tasks_.push_back(std::move(task));
  }
  if (!awaited) {
    launched_.notify_all();
    return outcome;
  }
  carry_out(std::move(task), &caller_poll_);
  const std::lock_guard lock(mutex_);
  busy_ = false;
  return outcome;
}

void Reducer::wait_for(const Outcome& outcome) {
  interruptible([&] {
    while (!outcome.wait(poll_ ? Deadline::after(WaitFor::poll_interval) : Deadline::never())) poll_caller();
    if (interruption_) throw EngineError(interrupted);
  });
}

void Reducer::poll_caller() {
  try {
    poll_();
  } catch (...) {
    interruption_ = std::current_exception();
    group_->abort(interrupted);
    throw EngineError(interrupted);
  }
}

void Reducer::trim() {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }
  group_->trim();
}

void Reducer::run() noexcept {
  while (auto task = next()) carry_out(*std::move(task), nullptr);
  for (const Task& task : tasks_) {
    task.outcome->end({}, std::make_exception_ptr(EngineError("the reducer is gone")));
  }
}

void Reducer::carry_out(Task task, const std::function<void()>* poll) noexcept {
  poll_now_ = poll;
  std::vector<Result> results;
  std::exception_ptr error = broken_;
  try {
    if (!error) results = results_of(std::move(task.contributions));
  } catch (const InvalidArgument&) {
    error = std::current_exception();
  } catch (const Stopped&) {
    error = std::make_exception_ptr(EngineError("the reducer is gone"));
  } catch (...) {
    error = broken_ = std::current_exception();
  }
  shared_.reset();
  task.outcome->end(std::move(results), std::move(error));
}

std::optional<Reducer::Task> Reducer::next() {
  std::unique_lock lock(mutex_);
  busy_ = false;
  idle_.notify_all();
  launched_.wait(lock, [this] { return stop_.load() || !tasks_.empty(); });
  if (stop_.load()) return std::nullopt;
  busy_ = true;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void Reducer::Given::add(Lease lease, ContributionView view) {
  const ContributionView& message = messages.emplace_back(std::move(view));
  leases.push_back(std::move(lease));
  const CollectiveSpec& first = messages.front().spec();
  const CollectiveSpec& its = message.spec();
  if (its.collective != first.collective || its.op != first.op || its.dtype != first.dtype) {
    throw CorruptMessage(0, "the messages of one collective are for different ones");
  }
  const auto number = static_cast<std::uint32_t>(messages.size() - 1);
  for (std::uint32_t input = 0; input < its.pieces.size(); ++input) {
    where.push_back({message.inputs()->positions[input], number, input});
  }
  complete = message.is_last();
  if (!complete) return;
  if (!std::ranges::is_sorted(where, {}, &Place::position)) std::ranges::sort(where, {}, &Place::position);
  for (std::uint32_t i = 0; i < where.size(); ++i) {
    if (where[i].position != i) throw CorruptMessage(0, "an input of a collective is missing, or is there twice");
  }
}

CollectiveSpec Reducer::Given::spec() const {
  CollectiveSpec all = messages.front().spec();
  all.pieces.clear();
  for (const Place& each : where) all.pieces.push_back(messages[each.message].spec().pieces[each.input]);
  return all;
}

bool Reducer::Given::says_the_same_as(const Given& other) const {
  return std::ranges::equal(messages, other.messages, {}, &ContributionView::inputs, &ContributionView::inputs);
}

std::vector<Result> Reducer::results_of(std::vector<Contribution> contributions) {
  ++number_;
  const Collective collective = contributions.front().spec().collective;
  const bool gathers = collective == Collective::all_gather;
  const bool to_all = gathers || shares_memory_;
  auto messages = to_all ? for_all(std::move(contributions)) : pieces_for_each(std::move(contributions));
  const auto given = exchange(collective, std::move(messages), to_all ? to_all_ : receiving_);
  if (gathers) return side_by_side(given);
  auto sums = reduce(given);
  return collective == Collective::all_reduce ? spread(given.front().spec(), sums) : sums;
}

std::deque<Reducer::Outgoing> Reducer::for_all(std::vector<Contribution> contributions) {
  std::deque<Outgoing> messages;
  for (auto& each : contributions) {
    const bool last = &each == &contributions.back();
    messages.push_back({to_all_[static_cast<std::size_t>(rank())].channel.get(), std::move(each).finish(last)});
  }
  return messages;
}

std::deque<Reducer::Outgoing> Reducer::pieces_for_each(std::vector<Contribution> contributions) {
  std::deque<Outgoing> messages;
  for (auto& each : contributions) {
    const std::size_t inputs = each.spec().pieces.size();
    std::size_t bytes = 0;
    for (std::size_t input = 0; input < inputs; ++input) bytes += each.piece_bytes(input);
    // Beginning behind oneself, so that not all send to the same rank at once.
    for (int step = 1; step <= size(); ++step) {
      const int to = (rank() + step) % size();
      Block block = allocate(Contribution::block_bytes(bytes, inputs));
      messages.push_back({sending_[static_cast<std::size_t>(to)].get(),
                          each.finish_for(to, &each == &contributions.back(), std::move(block))});
    }
  }
  return messages;
}

bool Reducer::receive(Incoming& from, Given& given, bool is_expected) {
  InputsReader& reader = &from == &to_all_[static_cast<std::size_t>(from.channel->from())] ? of_all_ : of_own_;
  bool received = false;
  while (!given.complete) {
    auto lease = std::exchange(from.early, std::nullopt);
    if (!lease) {
      Received next = group_->try_receive(*from.channel);
      from.ended = next.ended;
      if (!next.message) break;
      lease = std::move(next.message);
    }
    ContributionView message(lease->bytes, reader);
    if (message.exchange() > exchange_) {
      from.early = std::move(lease);
      break;
    }
    if (message.exchange() < exchange_) throw CorruptMessage(0, "a message of a collective that has ended");
    if (!is_expected) given.is_readable = false;
    given.add(*std::move(lease), std::move(message));
    received = true;
  }
  return received;
}

std::vector<Reducer::Given> Reducer::exchange(Collective collective, std::deque<Outgoing> to_send,
                                              std::vector<Incoming>& from) {
  ++exchange_;
  for (Outgoing& each : to_send) Contribution::number(each.message.block, exchange_);
  std::vector<Incoming>& others = &from == &to_all_ ? receiving_ : to_all_;
  std::vector<Given> given(static_cast<std::size_t>(size()));
  const auto missing = [&] { return std::ranges::find(given, false, &Given::complete) - given.begin(); };
  auto deadline = Deadline::after(timeout_);
  auto begin = Clock::now();
  const auto explain = [&](int awaited) {
    return explain_wait(*group_, to_string(collective), awaited, Clock::now() - begin);
  };
  while (missing() < size() || !to_send.empty()) {
    bool moved = false;
    while (!to_send.empty() && group_->try_publish(*to_send.front().channel, to_send.front().message.block,
                                                   to_send.front().message.bytes)) {
      to_send.pop_front();
      moved = true;
    }
    std::vector<Channel*> missing_from;
    for (std::size_t r = 0; r < given.size(); ++r) {
      if (given[r].complete) continue;
      const std::size_t awaited = missing_from.size();
      for (auto* channels : {&from, &others}) {
        if (channels->empty()) continue;
        Incoming& each = (*channels)[r];
        if (receive(each, given[r], channels == &from)) moved = true;
        if (!each.early && !each.ended) missing_from.push_back(each.channel.get());
      }
      if (!given[r].complete && missing_from.size() == awaited) {
        throw_left(*group_, static_cast<int>(r), fmt::format("{} {}", to_string(collective), number_));
      }
    }
    if (moved) {
      deadline = Deadline::after(timeout_);
      begin = Clock::now();
      continue;
    }
    const int slow = missing() < size() ? static_cast<int>(missing()) : -1;
    group_->post(Status::make(to_string(collective), number_, slow));
    std::vector<Channel*> room;
    if (!to_send.empty()) room.push_back(to_send.front().channel);
    const auto explain_slow = [&] { return explain(slow < 0 ? rank() : slow); };
    const WaitFor conditions{.receive = missing_from, .publish = room, .stop = &stop_, .poll = poll_now_};
    const Woken woken = Reminder().wait(*group_, conditions, deadline, explain_slow);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) throw Timeout(explain_slow());
  }
  check(given);
  return given;
}

void Reducer::check(const std::vector<Given>& given) const {
  for (std::size_t r = 1; r < given.size(); ++r) {
    if (given[r].says_the_same_as(given[0])) continue;
    const CollectiveSpec first = given[0].spec();
    const CollectiveSpec its = given[r].spec();
    const std::string what = difference(first, 0, its, static_cast<int>(r));
    if (what.empty()) continue;
    const auto name = first.collective == its.collective ? to_string(first.collective) : "collective";
    throw InvalidArgument(fmt::format("ranks disagree about {} {}: {}", name, number_, what));
  }
  if (!std::ranges::all_of(given, &Given::is_readable)) {
    throw CorruptMessage(0, "the inputs of a collective are not where its messages say");
  }
}

std::vector<Result> Reducer::reduce(const std::vector<Given>& given) {
  const CollectiveSpec& spec = given.front().messages.front().spec();
  const std::size_t element = spec.dtype.bytes(1);
  // What came for this rank alone has one piece, its own.
  const int own = shares_memory_ ? rank() : 0;
  const std::size_t inputs = given.front().where.size();
  std::vector<Result> sums;
  sums.reserve(inputs);
  std::vector<const std::byte*> pieces(given.size());
  for (std::size_t input = 0; input < inputs; ++input) {
    const Result& sum = sums.emplace_back(result(given.front().piece_bytes(input)));
    for (std::size_t r = 0; r < given.size(); ++r) pieces[r] = given[r].piece(input, own);
    reduce_arrays(spec.dtype, spec.op, pieces, sum.bytes / element, sum.data);
  }
  return sums;
}

std::vector<Result> Reducer::spread(const CollectiveSpec& spec, const std::vector<Result>& sums) {
  CollectiveSpec gathered = spec;
  gathered.collective = Collective::all_gather;
  gathered.pieces.clear();
  std::size_t bytes = 0;
  for (const Result& sum : sums) bytes += sum.bytes;
  std::vector<Contribution> own;
  own.emplace_back(allocate(Contribution::block_bytes(bytes, sums.size())), size(), std::move(gathered));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t input = own.front().add(spec.pieces[i], i);
    copy_payload(own.front().data(input), sums[i].data, sums[i].bytes);
  }
  const auto given = exchange(Collective::all_reduce, for_all(std::move(own)), to_all_);
  return side_by_side(given);
}

std::vector<Result> Reducer::side_by_side(const std::vector<Given>& given) {
  std::vector<Result> results;
  for (std::size_t input = 0; input < given.front().where.size(); ++input) {
    const std::size_t bytes = given.front().piece_bytes(input);
    std::byte* to = results.emplace_back(result(bytes * given.size())).data;
    for (const Given& each : given) {
      copy_payload(to, each.piece(input, 0), bytes);
      to += bytes;
    }
  }
  return results;
}

Result Reducer::result(std::size_t bytes) {
  if (!shared_ || bytes > shared_->memory().size() - shared_used_) {
    auto block = group_->try_allocate(std::max(bytes, shared_bytes));
    if (!block) {
      auto heap = std::make_shared<Bytes>(bytes);
      return {heap->data(), heap, bytes};
    }
    auto held = std::make_shared<Block>(*std::move(block));
    if (bytes >= shared_bytes) return {held->memory().data(), held, bytes};
    shared_ = std::move(held);
    shared_used_ = 0;
  }
  std::byte* data = shared_->memory().data() + shared_used_;
  shared_used_ = std::min(align_up(shared_used_ + bytes, alignment), shared_->memory().size());
  return {data, shared_, bytes};
}

Block Reducer::allocate(std::size_t bytes) {
  const auto deadline = Deadline::after(timeout_);
  while (true) {
    if (auto block = group_->try_allocate(bytes)) return *std::move(block);
    const Woken woken = group_->wait({.allocate = bytes, .stop = &stop_, .poll = poll_now_}, deadline);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) {
      Channel* const sent[] = {to_all_[static_cast<std::size_t>(rank())].channel.get()};
      throw Timeout(explain_full_memory(*group_, bytes, "a collective", timeout_, sent));
    }
  }
}

}  // namespace levada
