#include "levada/reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

/// Results lie in the engine's memory, which has been touched before, while the heap gets it from the system page by
/// page. Small ones share so many bytes, so that one that is kept does not hold many more.
constexpr std::size_t shared_bytes = std::size_t{64} << 10;
constexpr std::size_t alignment = 64;

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
    : group_(std::move(group)), timeout_(timeout), of_all_(size()), of_own_(1) {
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

void Reducer::trim() {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }
  group_->trim();
}

void Reducer::run() noexcept {
  while (auto task = next()) {
    std::vector<Tensor> results;
    std::exception_ptr error = broken_;
    try {
      if (!error) results = carry_out(std::move(task->contributions));
    } catch (const InvalidArgument&) {
      error = std::current_exception();
    } catch (const Stopped&) {
      error = std::make_exception_ptr(EngineError("the reducer is gone"));
    } catch (...) {
      error = broken_ = std::current_exception();
    }
    shared_.reset();
    task->outcome->end(std::move(results), std::move(error));
  }
  for (const Task& task : tasks_) {
    task.outcome->end({}, std::make_exception_ptr(EngineError("the reducer is gone")));
  }
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

void Reducer::Given::add(Lease lease, InputsReader& reader) {
  const Received& message = messages.emplace_back(lease.bytes, reader);
  leases.push_back(std::move(lease));
  const Agenda& first = messages.front().agenda();
  const Agenda& its = message.agenda();
  if (its.collective != first.collective || its.op != first.op || its.dtype != first.dtype) {
    throw CorruptMessage(0, "the messages of one collective mean different things");
  }
  for (std::size_t input = 0; input < its.pieces.size(); ++input) where.emplace_back(messages.size() - 1, input);
  complete = message.is_last();
}

Agenda Reducer::Given::agenda() const {
  Agenda all = messages.front().agenda();
  all.pieces.clear();
  for (const Received& each : messages) {
    all.pieces.insert(all.pieces.end(), each.agenda().pieces.begin(), each.agenda().pieces.end());
  }
  return all;
}

bool Reducer::Given::says_the_same_as(const Given& other) const {
  return std::ranges::equal(messages, other.messages, {}, &Received::inputs, &Received::inputs);
}

std::vector<Tensor> Reducer::carry_out(std::vector<Contribution> contributions) {
  ++number_;
  const std::vector<Given> given = exchange(std::move(contributions));
  check(given);
  const Agenda& agenda = given.front().messages.front().agenda();
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
        given[r].add(std::move(*lease), to_all ? of_all_ : of_own_);
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
    if (given[r].says_the_same_as(given[0])) continue;
    const Agenda first = given[0].agenda();
    const std::string what = difference(first, 0, given[r].agenda(), static_cast<int>(r));
    if (what.empty()) continue;
    throw InvalidArgument(fmt::format("ranks disagree about {} {}: {}", to_string(first.collective), number_, what));
  }
}

std::vector<Tensor> Reducer::reduce(const std::vector<Given>& given) {
  const Agenda& agenda = given.front().messages.front().agenda();
  // What came for this rank alone has one piece, its own.
  const int own = group_->info().zero_copy ? rank() : 0;
  const std::size_t inputs = given.front().where.size();
  std::vector<Tensor> sums;
  sums.reserve(inputs);
  std::vector<const std::byte*> pieces(given.size());
  for (std::size_t input = 0; input < inputs; ++input) {
    Tensor& sum = sums.emplace_back(result(agenda.dtype, given.front().shape(input)));
    for (std::size_t r = 0; r < given.size(); ++r) pieces[r] = given[r].piece(input, own);
    reduce_arrays(agenda.dtype, agenda.op, pieces, sum.view().element_count(), sum.mutable_bytes().data());
  }
  return sums;
}

std::vector<Tensor> Reducer::spread(Agenda agenda, const std::vector<Tensor>& sums) {
  agenda.collective = Collective::all_gather;
  agenda.pieces.clear();
  std::size_t bytes = 0;
  for (const Tensor& sum : sums) bytes += sum.view().byte_count();
  Contribution contribution(allocate(Contribution::block_bytes(bytes, sums.size())), size(), std::move(agenda));
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

std::vector<Tensor> Reducer::side_by_side(const std::vector<Given>& given) {
  const DType dtype = given.front().messages.front().agenda().dtype;
  std::vector<Tensor> results;
  for (std::size_t input = 0; input < given.front().where.size(); ++input) {
    const Shape& piece = given.front().shape(input);
    Tensor& all = results.emplace_back(result(dtype, stacked(piece, size())));
    const std::size_t bytes = *tensor_bytes(dtype, piece);
    std::byte* to = all.mutable_bytes().data();
    for (const Given& each : given) {
      copy_payload(to, each.piece(input, 0), bytes);
      to += bytes;
    }
  }
  return results;
}

Tensor Reducer::result(DType dtype, const Shape& shape) {
  const std::size_t bytes = *tensor_bytes(dtype, shape);
  if (!shared_ || bytes > shared_->memory().size() - shared_used_) {
    auto block = group_->try_allocate(std::max(bytes, shared_bytes));
    if (!block) return Tensor::empty(dtype, shape);
    auto held = std::make_shared<Block>(*std::move(block));
    if (bytes >= shared_bytes) return Tensor(TensorView(dtype, shape, held->memory().data()), held, true);
    shared_ = std::move(held);
    shared_used_ = 0;
  }
  std::byte* data = shared_->memory().data() + shared_used_;
  shared_used_ = std::min(align_up(shared_used_ + bytes, alignment), shared_->memory().size());
  return Tensor(TensorView(dtype, shape, data), shared_, true);
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
