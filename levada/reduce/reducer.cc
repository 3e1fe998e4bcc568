#include "levada/reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
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

/// With the inputs of all of them, in order.
CollectiveSpec spec_of(const std::vector<Contribution>& contributions) {
  CollectiveSpec all = contributions.front().spec();
  std::size_t inputs = 0;
  for (const Contribution& each : contributions) inputs += each.positions().size();
  all.pieces.resize(inputs);
  for (const Contribution& each : contributions) {
    for (std::size_t i = 0; i < each.positions().size(); ++i) all.pieces[each.positions()[i]] = each.spec().pieces[i];
  }
  return all;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<Engine> group, int window, Duration timeout, std::function<void()> poll)
    : group_(std::move(group)), poll_(std::move(poll)), timeout_(timeout), of_all_(size()), of_own_(1) {
  if (poll_) caller_poll_ = [this] { poll_caller(); };
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  std::ranges::copy_if(all, std::back_inserter(host_), [this](int r) { return group_->shares_memory(r); });
  for (const int from : all) to_all_.push_back(group_->open(from, all, window));
  if (host_.size() < all.size()) {
    for (const int from : host_) to_host_.push_back(group_->open(from, host_, window));
    for (const int other : all) {
      const bool is_near = std::ranges::binary_search(host_, other);
      sending_.push_back(is_near ? nullptr : group_->open(rank(), {other}, window));
      receiving_.push_back(is_near ? nullptr : group_->open(other, {rank()}, window));
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
  const CollectiveSpec spec = spec_of(contributions);
  if (spec.collective == Collective::all_gather) {
    return side_by_side(exchange(spec.collective, std::move(contributions)));
  }
  const auto sums = to_host_.empty() ? reduce(exchange(spec.collective, std::move(contributions)))
                                     : reduce_between_hosts(std::move(contributions), spec);
  return spec.collective == Collective::all_reduce ? spread(spec, sums) : sums;
}

std::deque<Reducer::Outgoing> Reducer::on(Channel& channel, std::vector<Contribution> contributions) {
  std::deque<Outgoing> messages;
  for (auto& each : contributions) {
    const bool last = &each == &contributions.back();
    messages.push_back({&channel, std::move(each).finish(last)});
    Contribution::number(messages.back().message.block, exchange_);
  }
  return messages;
}

bool Reducer::receive(Collective collective, const Awaited& from) {
  bool received = false;
  while (!from.given->complete) {
    Received next = group_->try_receive(*from.channel);
    if (next.ended) {
      throw_left(*group_, from.channel->from(), fmt::format("{} {}", to_string(collective), number_));
    }
    if (!next.message) break;
    received = true;
    ContributionView message(next.message->bytes, *from.reader);
    if (message.exchange() < exchange_) continue;  // sums that nobody wanted, as hosts disagreed
    if (message.exchange() > exchange_) throw CorruptMessage(0, "a message of a collective that has not begun");
    from.given->add(*std::move(next.message), std::move(message));
  }
  return received;
}

void Reducer::transfer(Collective collective, std::deque<Outgoing>& to_send, std::vector<Awaited> awaited,
                       bool until_sent) {
  auto deadline = Deadline::after(timeout_);
  auto begin = Clock::now();
  while (true) {
    bool moved = false;
    while (!to_send.empty() && group_->try_publish(*to_send.front().channel, to_send.front().message.block,
                                                   to_send.front().message.bytes)) {
      to_send.pop_front();
      moved = true;
    }
    for (const Awaited& each : awaited) moved |= receive(collective, each);
    std::erase_if(awaited, [](const Awaited& each) { return each.given->complete; });
    if (awaited.empty() && (to_send.empty() || !until_sent)) return;
    if (moved) {
      deadline = Deadline::after(timeout_);
      begin = Clock::now();
      continue;
    }
    const int slow = awaited.empty() ? -1 : awaited.front().channel->from();
    group_->post(Status::make(to_string(collective), number_, slow));
    std::vector<Channel*> missing, room;
    for (const Awaited& each : awaited) missing.push_back(each.channel.get());
    if (!to_send.empty()) room.push_back(to_send.front().channel);
    const auto explain_slow = [&] {
      return explain_wait(*group_, to_string(collective), slow < 0 ? rank() : slow, Clock::now() - begin);
    };
    const WaitFor conditions{.receive = missing, .publish = room, .stop = &stop_, .poll = poll_now_};
    const Woken woken = Reminder().wait(*group_, conditions, deadline, explain_slow);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) throw Timeout(explain_slow());
  }
}

std::vector<Reducer::Awaited> Reducer::awaited_from(const std::vector<int>& from, std::vector<Given>& given) {
  std::vector<Awaited> awaited;
  for (const int each : from) {
    const auto at = static_cast<std::size_t>(each);
    if (!given[at].complete) awaited.push_back({to_all_[at], &of_all_, &given[at]});
  }
  return awaited;
}

std::vector<Reducer::Given> Reducer::exchange(Collective collective, std::vector<Contribution> contributions) {
  ++exchange_;
  auto to_send = on(*to_all_[static_cast<std::size_t>(rank())], std::move(contributions));
  std::vector<Given> given(to_all_.size());
  transfer(collective, to_send, awaited_from(to_all_.front()->to(), given), true);
  check(given);
  for (const Given& each : given) check_has_inputs(each);
  return given;
}

void Reducer::check_has_inputs(const Given& given) {
  if (std::ranges::all_of(given.messages, &ContributionView::has_inputs)) return;
  throw CorruptMessage(0, "an announcement of a collective stands where its inputs are to be");
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
}

std::vector<Result> Reducer::reduce(const std::vector<Given>& given) {
  const CollectiveSpec& spec = given.front().messages.front().spec();
  const std::size_t element = spec.dtype.bytes(1);
  const std::size_t inputs = given.front().where.size();
  std::vector<Result> sums;
  sums.reserve(inputs);
  std::vector<const std::byte*> pieces(given.size());
  for (std::size_t input = 0; input < inputs; ++input) {
    const Result& sum = sums.emplace_back(result(given.front().piece_bytes(input)));
    for (std::size_t r = 0; r < given.size(); ++r) pieces[r] = given[r].piece(input, rank());
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
  return side_by_side(exchange(Collective::all_reduce, std::move(own)));
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
      Channel* const sent[] = {to_all_[static_cast<std::size_t>(rank())].get()};
      throw Timeout(explain_full_memory(*group_, bytes, "a collective", timeout_, sent));
    }
  }
}

}  // namespace levada
