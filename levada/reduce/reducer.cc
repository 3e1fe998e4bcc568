#include "levada/reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

/// The Reducer is being destroyed.
struct Stopped {};

/// `pieces` of them along a new first dimension.
Shape stacked(const Shape& piece, int pieces) {
  if (piece.rank() == Shape::max_rank) throw Unsupported("a tensor has too many dimensions to be gathered");
  Shape shape{pieces};
  for (const std::int64_t extent : piece) shape.push_back(extent);
  return shape;
}

}  // namespace

bool Outcome::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

const std::vector<Tensor>& Outcome::results(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  while (!done_) {
    if (deadline.is_never()) changed_.wait(lock);
    else if (changed_.wait_until(lock, deadline.at()) == std::cv_status::timeout && !done_) {
      throw Timeout("a collective is still under way");
    }
  }
  if (error_) std::rethrow_exception(error_);
  return results_;
}

void Outcome::end(std::vector<Tensor> results, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    results_ = std::move(results);
    error_ = std::move(error);
    done_ = true;
  }
  changed_.notify_all();
}

Reducer::Reducer(std::shared_ptr<Engine> group, int window, Duration timeout)
    : group_(std::move(group)), timeout_(timeout) {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  for (const int from : all) to_all_.push_back(group_->open(from, all, window));
  if (!group_->info().zero_copy) {
    // Everybody would get everybody's pieces. One to itself is a channel of its own at either end of the list.
    for (const int from : all) {
      for (const int to : all) {
        if (from != rank() && to != rank()) continue;
        const std::shared_ptr<Channel> channel = group_->open(from, {to}, window);
        if (from == rank()) sending_.push_back(channel);
        if (to == rank()) receiving_.push_back(channel);
      }
    }
  }
  thread_ = std::thread([this] { run(); });
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

Contribution Reducer::contribution(Agenda agenda, std::size_t bytes, std::size_t inputs) {
  Block block = levada::allocate(*group_, Contribution::block_bytes(bytes, inputs), Deadline::after(timeout_),
                                 to_string(agenda.collective));
  return Contribution(std::move(block), size(), std::move(agenda));
}

std::shared_ptr<const Outcome> Reducer::launch(std::vector<Contribution> contributions) {
  auto outcome = std::make_shared<Outcome>();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(contributions), outcome});
  }
  launched_.notify_all();
  return outcome;
}

void Reducer::run() noexcept {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      launched_.wait(lock, [this] { return stop_.load() || !tasks_.empty(); });
      if (stop_.load()) break;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    std::vector<Tensor> results;
    std::exception_ptr error = broken_;
    try {
      if (!error) results = carry_out(std::move(task.contributions));
    } catch (const InvalidArgument&) {
      error = std::current_exception();
    } catch (const Stopped&) {
      error = std::make_exception_ptr(EngineError("the reducer is gone"));
    } catch (...) {
      error = broken_ = std::current_exception();
    }
    task.outcome->end(std::move(results), std::move(error));
  }
  for (const Task& task : tasks_) {
    task.outcome->end({}, std::make_exception_ptr(EngineError("the reducer is gone")));
  }
}

void Reducer::Given::add(Lease lease, int ranks) {
  const Received& message = messages.emplace_back(lease.bytes, ranks);
  leases.push_back(std::move(lease));
  const Agenda& its = message.agenda();
  if (messages.size() == 1) {
    agenda = its;
  } else if (its.collective != agenda.collective || its.op != agenda.op || its.dtype != agenda.dtype) {
    throw CorruptMessage(0, "the messages of one collective mean different things");
  } else {
    agenda.pieces.insert(agenda.pieces.end(), its.pieces.begin(), its.pieces.end());
  }
  for (std::size_t input = 0; input < its.pieces.size(); ++input) where.emplace_back(messages.size() - 1, input);
  complete = message.is_last();
}

std::vector<Tensor> Reducer::carry_out(std::vector<Contribution> contributions) {
  ++number_;
  const std::vector<Given> given = exchange(std::move(contributions));
  check(given);
  const Agenda& agenda = given.front().agenda;
  if (agenda.collective == Collective::all_gather) return side_by_side(given);
  std::vector<Tensor> sums = reduce(given);
  return agenda.collective == Collective::all_reduce ? spread(agenda, sums) : sums;
}

std::deque<Reducer::Outgoing> Reducer::outgoing(std::vector<Contribution> contributions, bool to_all) {
  std::deque<Outgoing> messages;
  for (auto& each : contributions) {
    const bool last = &each == &contributions.back();
    if (to_all) {
      messages.push_back({to_all_[static_cast<std::size_t>(rank())].get(), std::move(each).finish(last)});
      continue;
    }
    const Agenda& agenda = each.agenda();
    std::size_t bytes = 0;
    for (std::size_t input = 0; input < agenda.pieces.size(); ++input) bytes += agenda.piece_bytes(input);
    // Beginning behind oneself, so that not all send to the same rank at once.
    for (int step = 1; step <= size(); ++step) {
      const int to = (rank() + step) % size();
      Block block = allocate(Contribution::block_bytes(bytes, agenda.pieces.size()));
      messages.push_back({sending_[static_cast<std::size_t>(to)].get(), each.finish_for(to, last, std::move(block))});
    }
  }
  return messages;
}

std::vector<Reducer::Given> Reducer::exchange(std::vector<Contribution> contributions) {
  const Agenda agenda = contributions.front().agenda();
  const bool to_all = agenda.collective == Collective::all_gather || group_->info().zero_copy;
  const auto& from = to_all ? to_all_ : receiving_;
  auto to_send = outgoing(std::move(contributions), to_all);
  std::vector<Given> given(static_cast<std::size_t>(size()));
  const auto missing = [&] { return std::ranges::find(given, false, &Given::complete) - given.begin(); };
  auto deadline = Deadline::after(timeout_);
  while (missing() < size() || !to_send.empty()) {
    bool moved = false;
    while (!to_send.empty() && group_->try_publish(*to_send.front().channel, to_send.front().message.block,
                                                   to_send.front().message.bytes)) {
      to_send.pop_front();
      moved = true;
    }
    std::vector<Channel*> take;
    for (std::size_t r = 0; r < given.size(); ++r) {
      while (!given[r].complete) {
        auto lease = group_->try_take(*from[r]);
        if (!lease) break;
        given[r].add(std::move(*lease), to_all ? size() : 1);
        moved = true;
      }
      if (given[r].complete) continue;
      if (group_->ended(*from[r])) throw PeerLost(static_cast<int>(r), fmt::format("rank {} has left", r));
      take.push_back(from[r].get());
    }
    if (moved) {
      deadline = Deadline::after(timeout_);
      continue;
    }
    const int slow = missing() < size() ? static_cast<int>(missing()) : -1;
    group_->post(Status::make(to_string(agenda.collective), number_, slow));
    std::vector<Channel*> room;
    if (!to_send.empty()) room.push_back(to_send.front().channel);
    const Woken woken = group_->wait({.take = take, .publish = room, .stop = &stop_}, deadline);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) {
      throw Timeout(explain_wait(*group_, to_string(agenda.collective), slow < 0 ? rank() : slow, timeout_));
    }
  }
  return given;
}

void Reducer::check(const std::vector<Given>& given) const {
  for (std::size_t r = 1; r < given.size(); ++r) {
    const std::string what = difference(given[0].agenda, 0, given[r].agenda, static_cast<int>(r));
    if (!what.empty())
      throw InvalidArgument(
          fmt::format("ranks disagree about {} {}: {}", to_string(given[0].agenda.collective), number_, what));
  }
}

std::vector<Tensor> Reducer::reduce(const std::vector<Given>& given) {
  const Agenda& agenda = given.front().agenda;
  // What came for this rank alone has one piece, its own.
  const int own = group_->info().zero_copy ? rank() : 0;
  std::vector<Tensor> sums;
  std::vector<const std::byte*> pieces(given.size());
  for (std::size_t input = 0; input < agenda.pieces.size(); ++input) {
    Tensor& sum = sums.emplace_back(Tensor::empty(agenda.dtype, agenda.pieces[input]));
    for (std::size_t r = 0; r < given.size(); ++r) pieces[r] = given[r].piece(input, own);
    reduce_arrays(agenda.dtype, agenda.op, pieces, sum.view().element_count(), sum.mutable_bytes().data());
  }
  return sums;
}

std::vector<Tensor> Reducer::spread(const Agenda& agenda, const std::vector<Tensor>& sums) {
  Agenda gathering = agenda;
  gathering.collective = Collective::all_gather;
  gathering.pieces.clear();
  std::size_t bytes = 0;
  for (const Tensor& sum : sums) bytes += sum.view().byte_count();
  Contribution contribution(allocate(Contribution::block_bytes(bytes, sums.size())), size(), gathering);
  for (const Tensor& sum : sums) {
    const std::size_t input = contribution.add(sum.shape());
    copy_elements(sum, contribution.data(input));
  }
  std::vector<Contribution> own;
  own.push_back(std::move(contribution));
  const auto given = exchange(std::move(own));
  check(given);
  return side_by_side(given);
}

std::vector<Tensor> Reducer::side_by_side(const std::vector<Given>& given) const {
  const Agenda& agenda = given.front().agenda;
  std::vector<Tensor> results;
  for (std::size_t input = 0; input < agenda.pieces.size(); ++input) {
    Tensor& all = results.emplace_back(Tensor::empty(agenda.dtype, stacked(agenda.pieces[input], size())));
    const std::size_t bytes = agenda.piece_bytes(input);
    std::byte* to = all.mutable_bytes().data();
    for (const Given& each : given) {
      copy_payload(to, each.piece(input, 0), bytes);
      to += bytes;
    }
  }
  return results;
}

Block Reducer::allocate(std::size_t bytes) {
  const auto deadline = Deadline::after(timeout_);
  while (true) {
    if (auto block = group_->try_allocate(bytes)) return *std::move(block);
    const Woken woken = group_->wait({.allocate = bytes, .stop = &stop_}, deadline);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) {
      Channel* const sent[] = {to_all_[static_cast<std::size_t>(rank())].get()};
      throw Timeout(explain_full_memory(*group_, bytes, "a collective", timeout_, sent));
    }
  }
}

}  // namespace levada
