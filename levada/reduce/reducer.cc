#include "levada/reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "levada/base/assert.h"
#include "levada/base/copy.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/engine/collect.h"

namespace levada {
namespace {

constexpr const char* interrupted = "a rank was interrupted in a reduction";
constexpr const char* destroyed = "the Bucketer was destroyed before the collective ended";

/// The Reducer is being destroyed.
struct Stopped {};

}  // namespace

Reducer::Reducer(std::shared_ptr<Engine> group, Options options)
    : parent_(std::move(group)), options_(std::move(options)), name_(*parent_, options_.name) {
  const int window = options_.window;
  if (options_.poll) caller_poll_ = [this] { poll_caller(); };
  all_ranks_.resize(static_cast<std::size_t>(parent_->info().size));
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  group_ = parent_->subgroup(all_ranks_, fmt::format("reduce {}", options_.name));
  std::ranges::copy_if(all_ranks_, std::back_inserter(host_), [this](int r) { return group_->shares_memory(r); });
  for (const int from : all_ranks_) to_all_.push_back(group_->open(from, all_ranks_, window));
  if (host_.size() < all_ranks_.size()) {
    for (const int from : host_) to_host_.push_back(group_->open(from, host_, window));
    for (const int other : all_ranks_) {
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

namespace {

std::mutex names_mutex;
std::set<std::pair<const Engine*, std::string>> names;

}  // namespace

Reducer::NameInUse::NameInUse(const Engine& group, const std::string& name) : used_(&group, name) {
  const std::lock_guard lock(names_mutex);
  if (names.insert(used_).second) return;
  throw InvalidArgument(
      fmt::format("this rank already reduces in this group under the name '{}'; give each object that reduces in a "
                  "group a different name, the same on all ranks",
                  name));
}

Reducer::NameInUse::~NameInUse() {
  const std::lock_guard lock(names_mutex);
  names.erase(used_);
}

Block Reducer::allocate_inputs(std::size_t bytes, std::string_view what) {
  return interruptible(
      [&] { return levada::allocate(*group_, bytes, Deadline::after(options_.timeout), what, {}, &caller_poll_); });
}

std::shared_future<Results> Reducer::launch(CollectiveSpec spec, std::vector<BucketMessage> messages, bool awaited) {
  Task task{std::move(spec), std::move(messages), {}};
  std::shared_future<Results> results = task.results.get_future();
  std::unique_lock lock(mutex_);
  if (awaited && tasks_.empty() && !busy_) {
    busy_ = true;
    lock.unlock();
    execute(std::move(task), &caller_poll_);
  } else {
    tasks_.push_back(std::move(task));
    lock.unlock();
    launched_.notify_all();
  }
  return results;
}

void Reducer::wait_for(const std::shared_future<Results>& results) {
  interruptible([&] {
    while (options_.poll && results.wait_for(WaitFor::poll_interval) == std::future_status::timeout) poll_caller();
    results.wait();
    if (interruption_) throw EngineError(interrupted);
  });
}

void Reducer::poll_caller() {
  try {
    options_.poll();
  } catch (...) {
    interruption_ = std::current_exception();
    parent_->abort(interrupted);
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
  while (auto task = next_task()) execute(*std::move(task), nullptr);
  for (Task& task : tasks_) task.results.set_exception(std::make_exception_ptr(EngineError(destroyed)));
}

std::optional<Reducer::Task> Reducer::next_task() {
  std::unique_lock lock(mutex_);
  launched_.wait(lock, [this] { return stop_.load() || !tasks_.empty(); });
  if (stop_.load()) return std::nullopt;
  busy_ = true;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void Reducer::execute(Task task, const std::function<void()>* poll) noexcept {
  poll_now_ = poll;
  Results results;
  std::exception_ptr error = broken_;
  if (!error && task.spec.flush < agreed_from_) error = disagreement_;
  const auto [flush, is_last] = std::pair(task.spec.flush, task.spec.is_last);
  try {
    if (!error) results = results_of(std::move(task.spec), std::move(task.messages));
    // Ranks that have disagreed since the last flush have run different callbacks, so some ranks enqueue more inputs
    // within this flush than others. None of these inputs is reduced.
    if (!error && is_last && disagreed_in_ == flush) agreed_from_ = flush + 1;
  } catch (const InvalidArgument&) {
    error = disagreement_ = std::current_exception();
  } catch (const Stopped&) {
    error = std::make_exception_ptr(EngineError(destroyed));
  } catch (...) {
    error = broken_ = std::current_exception();
    end_group();
  }
  {
    // Clears busy_ before the caller is notified, so that the caller can execute the next collective itself.
    const std::lock_guard lock(mutex_);
    busy_ = false;
  }
  idle_.notify_all();
  if (error) task.results.set_exception(std::move(error));
  else task.results.set_value(std::move(results));
}

void Reducer::end_group() noexcept {
  try {
    std::rethrow_exception(broken_);
  } catch (const PeerLost&) {
    // The other ranks detect that themselves.
  } catch (const Timeout& timeout) {
    parent_->abort(fmt::format("a collective with Timeout: {}", timeout.what()), ErrorKind::timeout);
  } catch (const Error& failure) {
    parent_->abort(failure.what());
  } catch (const std::exception& failure) {
    parent_->abort(fmt::format("a reduction failed: {}", failure.what()));
  } catch (...) {
    parent_->abort("a reduction failed");
  }
}

Results Reducer::results_of(CollectiveSpec spec, std::vector<BucketMessage> messages) {
  ++number_;
  collective_ = spec.collective;
  const bool gathers = collective_ == Collective::all_gather || collective_ == Collective::flush;
  const BucketLayout layout(std::move(spec), gathers ? 1 : size());
  if (gathers) return concatenate(layout, exchange(layout, std::move(messages)));
  Results sums = to_host_.empty() ? reduce(layout, exchange(layout, std::move(messages)))
                                  : reduce_between_hosts(layout, std::move(messages));
  return collective_ == Collective::all_reduce ? all_gather_sums(layout.spec(), sums) : sums;
}

Reducer::Peers Reducer::exchange(const BucketLayout& layout, std::vector<BucketMessage> messages) {
  ++exchange_;
  auto to_send = outgoing(*to_all_[static_cast<std::size_t>(rank())], layout, std::move(messages));
  Peers peers(to_all_.size());
  transfer(to_send, missing_from(all_ranks_, layout, peers));
  check_agreement(layout, peers);
  for (const PeerMessages& peer : peers) check_inputs(layout, peer);
  return peers;
}

std::deque<Reducer::Outgoing> Reducer::outgoing(Channel& channel, const BucketLayout& layout,
                                                std::vector<BucketMessage> messages) {
  std::deque<Outgoing> to_send;
  for (BucketMessage& each : messages) {
    const MessageHeader header{.layout_hash = layout.hash(),
                               .exchange = exchange_,
                               .num_inputs = each.num_inputs,
                               .is_last = &each == &messages.back(),
                               .first_rank = host_.front()};
    header.write(each.block->memory());
    const ByteView bytes = each.block->memory().first(each.bytes);
    to_send.push_back({&channel, {bytes, std::move(each.block)}});
  }
  return to_send;
}

std::deque<Reducer::Outgoing> Reducer::announcement(const BucketLayout& layout, ByteView body) {
  const std::size_t bytes = MessageHeader::bytes + body.size();
  auto block = std::make_shared<const Block>(allocate(bytes));
  std::ranges::copy(body, block->memory().begin() + MessageHeader::bytes);  // not payload: a spec
  return outgoing(*to_all_[static_cast<std::size_t>(rank())], layout, {{std::move(block), bytes, 0}});
}

std::vector<Reducer::Incoming> Reducer::missing_from(const std::vector<int>& from, const BucketLayout& layout,
                                                     Peers& peers) {
  std::vector<Incoming> missing;
  for (const int each : from) {
    const auto at = static_cast<std::size_t>(each);
    if (!peers[at].is_complete) missing.push_back({to_all_[at], &layout, &peers[at]});
  }
  return missing;
}

void Reducer::transfer(std::deque<Outgoing>& to_send, std::vector<Incoming> missing, bool until_sent) {
  auto deadline = Deadline::after(options_.timeout);
  auto begin = Clock::now();
  const auto poll = asking_statuses(*parent_, poll_now_);  // `parent_`'s statuses explain waits on `group_`
  Reminder reminder;
  OperationStatus status(*parent_, to_string(collective_));
  while (true) {
    bool moved = false;
    while (!to_send.empty() && group_->try_publish(*to_send.front().channel, to_send.front().message)) {
      to_send.pop_front();
      moved = true;
    }
    for (const Incoming& each : missing) moved |= receive(each);
    std::erase_if(missing, [](const Incoming& each) { return each.peer->is_complete; });
    if (missing.empty() && (to_send.empty() || !until_sent)) return;
    if (moved) {
      deadline = Deadline::after(options_.timeout);
      begin = Clock::now();
      reminder = Reminder();
      continue;
    }
    const int slow = missing.empty() ? -1 : missing.front().channel->from();
    status.post(slow, options_.name, number_);
    std::vector<Channel*> receive, publish;
    for (const Incoming& each : missing) receive.push_back(each.channel.get());
    if (!to_send.empty()) publish.push_back(to_send.front().channel);
    const auto explain_slow = [&] {
      return explain_wait(*parent_, to_string(collective_), slow < 0 ? rank() : slow, Clock::now() - begin);
    };
    const WaitFor conditions{.receive = receive, .publish = publish, .stop = &stop_, .poll = &poll};
    const Woken woken = reminder.wait(*group_, conditions, deadline, explain_slow);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) throw Timeout(explain_slow());
  }
}

std::string Reducer::call_text(bool is_agreed) const {
  const std::string text = fmt::format("{} {}", is_agreed ? to_string(collective_) : "collective", number_);
  return options_.name.empty() ? text : fmt::format("{} of {}", text, options_.name);
}

bool Reducer::receive(const Incoming& from) {
  bool received = false;
  while (!from.peer->is_complete) {
    Received next = group_->try_receive(*from.channel);
    if (next.ended) {
      check_group(*group_);
      // An exception that ended the rank is posted in the caller's group.
      throw_left(*parent_, from.channel->from(), call_text());
    }
    if (!next.message) break;
    received = true;
    const MessageHeader header = MessageHeader::read(next.message->bytes);
    if (header.exchange < exchange_) continue;  // sums of a host that were not received because hosts disagreed
    if (header.exchange > exchange_) throw CorruptMessage(0, "a message of a later collective");
    from.peer->add(*std::move(next.message), header, *from.layout);
  }
  return received;
}

void Reducer::check_agreement(const BucketLayout& layout, Peers& peers) {
  const auto agrees = [&](const PeerMessages& peer) { return peer.layout_hash == layout.hash(); };
  if (std::ranges::all_of(peers, agrees)) return;
  peers.clear();  // so that no rank waits for memory that another waiting rank holds
  ++exchange_;
  ByteWriter mine;
  mine.put(std::int32_t{options_.job_rank});
  mine.put_bytes(layout.spec().encode());
  auto to_send = announcement(layout, mine.view());
  Peers described(to_all_.size());
  transfer(to_send, missing_from(all_ranks_, layout, described));
  std::vector<CollectiveSpec> specs;
  std::vector<std::string> ranks;
  for (const PeerMessages& peer : described) {
    if (peer.leases.empty()) throw CorruptMessage(0, "a message without the spec of its collective");
    ByteReader reader(peer.leases.front().bytes.subspan(MessageHeader::bytes));
    const auto job_rank = reader.get<std::int32_t>();
    const int r = static_cast<int>(ranks.size());
    const bool is_same = job_rank < 0 || job_rank == r;
    ranks.push_back(is_same ? fmt::format("rank {}", r)
                            : fmt::format("rank {} of the group (rank {} of the job)", r, job_rank));
    specs.push_back(CollectiveSpec::decode(reader));
  }
  for (const CollectiveSpec& spec : specs) {
    agreed_from_ = std::max(agreed_from_, spec.flush + (spec.is_last ? 1 : 0));
    disagreed_in_ = std::max(disagreed_in_.value_or(0), spec.flush);
  }
  for (std::size_t r = 1; r < specs.size(); ++r) {
    const std::string what = difference(specs[0], ranks[0], specs[r], ranks[r]);
    if (what.empty()) continue;
    const bool is_same = specs[0].collective == specs[r].collective;
    throw InvalidArgument(fmt::format("ranks disagree about {}: {}", call_text(is_same), what));
  }
  throw CorruptMessage(0, "ranks have different layouts of the same inputs");
}

void Reducer::check_inputs(const BucketLayout& layout, const PeerMessages& peer) {
  if (peer.layout_hash == layout.hash() && peer.inputs.size() == layout.inputs()) return;
  throw CorruptMessage(0, fmt::format("got {} inputs of a bucket with {}", peer.inputs.size(), layout.inputs()));
}

Results Reducer::reduce(const BucketLayout& layout, const Peers& peers) {
  const BucketLayout sums_layout(layout.spec(), 1);
  Results sums = allocate_results(sums_layout);
  add_up(layout, peers, rank(), sums_layout, sums.data.front(), divisor_of(layout.spec()));
  return sums;
}

void Reducer::add_up(const BucketLayout& layout, const Peers& peers, int number, const BucketLayout& sums_layout,
                     std::byte* to, std::size_t divisor) {
  const DType from = layout.spec().dtype;
  LEVADA_ASSERT(std::ranges::all_of(peers, [&](const auto& peer) { return peer.inputs.size() == layout.inputs(); }),
                "every rank has sent every input");
  std::vector<const std::byte*> pieces(peers.size());
  for (std::size_t i = 0; i < layout.inputs(); ++i) {
    const std::size_t bytes = layout.piece_bytes(i);
    for (std::size_t r = 0; r < peers.size(); ++r)
      pieces[r] = peers[r].inputs[i] + static_cast<std::size_t>(number) * bytes;
    if (pieces.size() == 1) copy_payload(to + sums_layout.offset(i), pieces.front(), bytes);
    else add_arrays(from, pieces, bytes / from.bytes(1), sums_layout.spec().dtype, to + sums_layout.offset(i), divisor);
  }
}

Results Reducer::all_gather_sums(CollectiveSpec spec, const Results& sums) {
  spec.collective = Collective::all_gather;
  const BucketLayout layout(std::move(spec), 1);
  const std::size_t bytes = MessageHeader::bytes + layout.bytes();
  auto block = std::make_shared<const Block>(allocate(bytes));
  copy_payload(block->memory().data() + MessageHeader::bytes, sums.data.front(), layout.bytes());
  return concatenate(layout, exchange(layout, {{std::move(block), bytes, layout.inputs()}}));
}

Results Reducer::concatenate(const BucketLayout& layout, const Peers& peers) {
  Results results = allocate_results(BucketLayout(layout.spec(), size()));
  for (std::size_t i = 0; i < layout.inputs(); ++i) {
    std::byte* to = results.data[i];
    for (const PeerMessages& peer : peers) {
      copy_payload(to, peer.inputs[i], layout.piece_bytes(i));
      to += layout.piece_bytes(i);
    }
  }
  return results;
}

Results Reducer::allocate_results(const BucketLayout& layout) {
  Results results;
  std::byte* begin = nullptr;
  const std::size_t bytes = std::max(layout.bytes(), BucketLayout::alignment);
  // The engine's memory has been touched before, while the system provides heap memory page by page.
  std::optional<Block> block;
  try {
    block = group_->try_allocate(bytes);
  } catch (const InvalidArgument&) {  // more than the engine can ever allocate
    if (group_->cause()) throw;
  }
  if (block) {
    begin = block->memory().data();
    results.owner = std::make_shared<const Block>(*std::move(block));
  } else {
    const auto heap = std::make_shared<Bytes>(bytes);
    begin = heap->data();
    results.owner = heap;
  }
  for (std::size_t i = 0; i < layout.inputs(); ++i) results.data.push_back(begin + layout.offset(i));
  return results;
}

Block Reducer::allocate(std::size_t bytes) {
  const auto deadline = Deadline::after(options_.timeout);
  while (true) {
    try {
      if (auto block = group_->try_allocate(bytes)) return *std::move(block);
    } catch (const InvalidArgument& refusal) {  // not InvalidArgument, since other ranks may have enough memory
      if (group_->cause()) throw;
      throw EngineError(refusal.what());
    }
    const Woken woken = group_->wait({.allocate = bytes, .stop = &stop_, .poll = poll_now_}, deadline);
    if (woken == Woken::stopped) throw Stopped{};
    if (woken == Woken::timeout) {
      Channel* const sent[] = {to_all_[static_cast<std::size_t>(rank())].get()};
      throw Timeout(explain_full_memory(*group_, bytes, "a collective", options_.timeout, sent));
    }
  }
}

}  // namespace levada
