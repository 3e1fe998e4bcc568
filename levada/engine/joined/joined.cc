#include "levada/engine/joined/joined.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/collect.h"
#include "levada/engine/joined/channel.h"
#include "levada/engine/joined/relay.h"
#include "levada/engine/joined/route.h"
#include "levada/engine/ranks.h"

namespace levada::joined {
namespace {

class JoinedEngine final : public Engine {
 public:
  /// `near_ranks`: this group's rank of each rank of `near`. `job_ranks`: the job's rank of each rank of this group.
  JoinedEngine(std::shared_ptr<Engine> near, std::shared_ptr<Engine> far, std::vector<int> near_ranks,
               std::vector<int> job_ranks, std::shared_ptr<SharedState> shared)
      : shared_(std::move(shared)),
        near_(std::move(near)),
        far_(std::move(far)),
        near_ranks_(std::move(near_ranks)),
        job_ranks_(std::move(job_ranks)),
        board_(std::make_shared<StatusBoard>(near_, far_)),
        info_(far_->info()) {
    info_.name = near_->info().name + "+" + far_->info().name;
    info_.degree = shared_->options.degree;
  }
  ~JoinedEngine() override {
    refresh();
    if (only_near_ && !far_->cause()) far_->report_lost(cause_->rank, cause_->detail);
    for (const auto& each : channels_) {
      if (const auto channel = each.lock()) channel->leave();
    }
    // Ranks on this host would take this rank's leaving for the cause until they see that the far engine has ended.
    if (!cause_) return;
    if (cause_->kind == ErrorKind::peer_lost || !near_->cause()) std::this_thread::sleep_until(seen_at_ + grace);
    else wait_for_far_cause();
  }

  const EngineInfo& info() const override { return info_; }
  bool shares_memory(int rank) const override {
    check_ranks(std::span(&rank, 1), info_.size, "shared memory");
    const int place = rank_in(near_ranks_, rank);
    return place >= 0 && near_->shares_memory(place);
  }
  std::optional<std::uint64_t> position_of(ByteView bytes) const override { return near_->position_of(bytes); }
  bool keep_pages(ByteView bytes) const override { return near_->keep_pages(bytes); }
  std::optional<ByteView> view(int rank, std::uint64_t position, std::uint64_t bytes) const override {
    return shares_memory(rank) ? near_->view(rank_in(near_ranks_, rank), position, bytes) : std::nullopt;
  }

  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override;
  using Engine::open;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions options) override;

  using Engine::try_allocate;
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use) override {
    return call([&] {
      check_far();
      auto block = near_->try_allocate(bytes, use);
      if (block) shared_->home = block->home().get();
      return block;
    });
  }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override;
  bool try_publish(Channel& channel, const Lease& lease) override;
  Received try_receive(Channel& channel) override;
  bool is_abandoned(Channel& channel) override {
    const EndpointRef& endpoint = received_here(channel).receiving();
    return endpoint.engine->is_abandoned(*endpoint.channel);
  }
  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    const EndpointRef& endpoint = received_here(channel).receiving();
    return endpoint.engine->make_private(*endpoint.channel, lease);
  }

  Woken wait(const WaitFor& conditions, Deadline deadline) override;
  void wake() override {
    near_->wake();
    far_->wake();
    shared_->relay->changes().ring();
  }
  void on_change(std::function<void()> hook) override {
    near_->on_change(hook);
    shared_->relay->changes().set_hook(std::move(hook));
  }

  void abort(std::string_view reason, ErrorKind kind) noexcept override {
    near_->abort(reason, kind);
    far_->abort(reason, kind);
  }
  std::optional<Cause> cause() override;
  void close(Channel& channel, End end) noexcept override {
    if (channel.owner() != this) return;
    refresh();
    static_cast<JoinedChannel&>(channel).close(end);
  }

  void post(const Status& status) override {
    call([&] {
      check_far();
      board_->post(status);
    });
  }
  Status status(int rank) override {
    check_ranks(std::span(&rank, 1), info_.size, "the status");
    return call([&] {
      check();
      const int place = rank_in(near_ranks_, rank);
      return place >= 0 ? near_->status(place) : far_->status(rank);
    });
  }
  void ask_statuses() override { far_->ask_statuses(); }
  std::vector<Holder> holders(Channel& channel) override;
  std::uint64_t memory_in_use() override { return near_->memory_in_use() + far_->memory_in_use(); }
  std::uint64_t trim() override { return near_->trim() + far_->trim(); }

 private:
  /// Errors of the near engine use its rank numbers; the cause uses this engine's.
  template <typename Call>
  auto call(const Call& body) -> decltype(body()) {
    try {
      return body();
    } catch (const Error&) {
      check();
      throw;
    }
  }
  void check() {
    if (const auto why = cause()) why->raise();
  }
  /// Same as check(), before a call of the near engine, which checks its own cause.
  void check_far() {
    if (has_cause()) check();
  }
  bool has_cause() { return *has_ended_ || far_->cause(); }
  /// Waits a moment for the far engine to see, and pass on, an abort that the near engine has seen first.
  void wait_for_far_cause() noexcept try {
    far_->wait({}, Deadline::after(grace));
  } catch (const Error&) {  // the far engine has it now
  }
  /// Updates the cause, before this rank closes its sending ends.
  void refresh() noexcept try { static_cast<void>(cause()); } catch (const Error&) {  // in a forked child
  }
  /// Throws PeerLost if a rank that forwards on these channels is lost.
  void check_forwarders(std::span<Channel* const> received);
  std::optional<Cause> near_cause();
  /// Returns the step in the last status of a rank of this host; -1 if unknown.
  std::int64_t near_step(int rank);

  JoinedChannel& own(Channel& channel) const {
    if (channel.owner() != this) throw_foreign_channel(info_.rank);
    return static_cast<JoinedChannel&>(channel);
  }
  JoinedChannel& sent_here(Channel& channel) const {
    JoinedChannel& joined = own(channel);
    if (!joined.sends) throw_not_sender(info_.rank, channel);
    return joined;
  }
  JoinedChannel& received_here(Channel& channel) const {
    JoinedChannel& joined = own(channel);
    if (!joined.receives) throw_not_receiver(info_.rank, channel);
    return joined;
  }
  /// Throws unless this rank can publish on the channel.
  JoinedChannel& publishing(Channel& channel);
  bool try_send(JoinedChannel& channel, const Lease& lease);

  EndpointRef open_near(const Hop& hop, int window, ChannelOptions options);
  EndpointRef open_far(const Hop& hop, int window, ChannelOptions options);

  /// A wait's conditions by engine.
  struct EngineConditions {
    std::vector<Channel*> near_receive, near_publish, far_receive, far_publish;
    bool is_ready = false;  ///< something can be published
  };
  EngineConditions by_engine(const WaitFor& conditions);
  Woken wait_near(const WaitFor& conditions, Deadline deadline, const std::function<void()>& poll);
  Woken wait_for_both(const WaitFor& conditions, Deadline deadline, const std::function<void()>& poll);

  /// Destroyed last: other ranks must see this rank leave this group while the relay still forwards in other groups.
  const std::shared_ptr<SharedState> shared_;
  const std::shared_ptr<Engine> near_, far_;
  const std::vector<int> near_ranks_, job_ranks_;
  const std::shared_ptr<StatusBoard> board_;
  EngineInfo info_;
  std::mutex mutex_;  // guards the members below
  std::optional<Cause> cause_;
  bool only_near_ = false;       ///< the cause is a death that the far engine had not seen
  Clock::time_point seen_at_{};  ///< when this rank saw the cause; for a death, when any group saw it
  const std::shared_ptr<std::atomic<bool>> has_ended_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::weak_ptr<JoinedChannel>> channels_;
};

// ---- groups and channels

std::shared_ptr<Engine> JoinedEngine::subgroup(std::span<const int> ranks, std::string_view name) {
  check_subgroup(info_.rank, info_.size, ranks);
  return call([&] {
    check();
    std::vector<int> near_ranks, job_ranks, members;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      job_ranks.push_back(job_ranks_[static_cast<std::size_t>(ranks[rank])]);
      const int place = rank_in(near_ranks_, ranks[rank]);
      if (place < 0) continue;
      near_ranks.push_back(static_cast<int>(rank));
      members.push_back(place);
    }
    // Groups with different members may have the same ranks on this host and be made in any order.
    auto near = near_->subgroup(members, fmt::format("{:016x} {}", hash64(std::as_bytes(ranks)), name));
    auto far = far_->subgroup(ranks, name);
    return std::make_shared<JoinedEngine>(std::move(near), std::move(far), std::move(near_ranks), std::move(job_ranks),
                                          shared_);
  });
}

EndpointRef JoinedEngine::open_near(const Hop& hop, int window, ChannelOptions options) {
  if (!hop) return {};
  std::vector<int> to;
  for (const int rank : hop.to) to.push_back(rank_in(near_ranks_, rank));
  return {near_, near_->open(rank_in(near_ranks_, hop.from), to, window, std::move(options))};
}

EndpointRef JoinedEngine::open_far(const Hop& hop, int window, ChannelOptions options) {
  if (!hop) return {};
  return {far_, far_->open(hop.from, hop.to, window, std::move(options))};
}

std::shared_ptr<Channel> JoinedEngine::open(int from, std::span<const int> to, int window, ChannelOptions options) {
  check_channel(info_.rank, info_.size, from, to, window);
  return call([&] {
    check();
    const Route route = route_of(info_.host_of, info_.rank, from, to, shared_->options.degree);
    // Channels between different ranks may share hops and be opened in any order; the tag tells them apart. Channels
    // with the same tag are opened in the same order on all members, and each engine counts them.
    const std::uint64_t tag = channel_kind(from, to, options.tag);
    const auto options_of = [&](const Hop& hop, Landing landing) {
      const bool must_be_closed = hop.from != from || hop.from == info_.rank || options.must_be_closed;
      return ChannelOptions{.landing = std::move(landing), .tag = tag, .must_be_closed = must_be_closed};
    };
    const EndpointRef near = open_near(route.near, window, options_of(route.near, {}));
    const EndpointRef outgoing = open_far(route.outgoing, window, options_of(route.outgoing, {}));
    Landing landing = near ? landing_in(near_) : std::move(options.landing);
    const EndpointRef incoming = open_far(route.incoming, window, options_of(route.incoming, std::move(landing)));
    if (route.forwards()) {
      shared_->relay->add(std::make_unique<Forward>(incoming, near, outgoing, from, route.forwards_to(info_.rank),
                                                    near_ranks_, board_));
    }
    auto channel = std::make_shared<JoinedChannel>(
        this, from, std::vector<int>(to.begin(), to.end()), window, info_.rank, options.must_be_closed,
        JoinedChannel::Endpoints{near, incoming, from == info_.rank ? outgoing : EndpointRef()},
        route.forwarder(info_.rank, from), has_ended_, shared_);
    const std::lock_guard lock(mutex_);
    std::erase_if(channels_, [](const auto& each) { return each.expired(); });
    channels_.push_back(channel);
    return channel;
  });
}

// ---- ends

std::optional<Cause> JoinedEngine::near_cause() {
  auto why = near_->cause();
  if (why && why->rank >= 0) why->rank = near_ranks_[static_cast<std::size_t>(why->rank)];
  return why;
}

std::optional<Cause> JoinedEngine::cause() {
  const std::lock_guard lock(mutex_);
  if (cause_) return cause_;
  auto near = near_cause();
  auto far = far_->cause();
  // An abort reaches both engines. Any other cause is seen first or only on this host; other ranks must learn of it
  // before they see this rank leave. The far engine usually detects a death itself, after all that the rank had sent.
  only_near_ = near && !far && near->kind == ErrorKind::peer_lost;
  if (near && !far && near->kind == ErrorKind::corrupt_message) far_->abort(near->text());
  if (near && !far && near->kind == ErrorKind::invalid_argument && near->rank == info_.rank) {
    far_->abort(near->detail, near->kind);
  }
  const bool is_abort = near && (near->kind == ErrorKind::engine || near->kind == ErrorKind::timeout);
  const bool is_same = near && far && near->kind == far->kind && near->rank == far->rank;
  cause_ = far && !is_abort && !is_same ? std::move(far) : std::move(near);
  seen_at_ = Clock::now();
  if (cause_ && cause_->kind == ErrorKind::peer_lost) {
    if (cause_->step < 0) cause_->step = near_step(cause_->rank);
    seen_at_ = shared_->first_seen(job_ranks_[static_cast<std::size_t>(cause_->rank)]);
  }
  *has_ended_ = cause_.has_value();
  return cause_;
}

void JoinedEngine::check_forwarders(std::span<Channel* const> received) {
  for (Channel* const channel : received) {
    JoinedChannel& joined = received_here(*channel);
    if (!joined.forwarder_is_lost()) continue;
    throw_left(*this, joined.forwarder(), fmt::format("it forwarded what rank {} sends", channel->from()));
  }
}

std::int64_t JoinedEngine::near_step(int rank) try {
  const int place = rank_in(near_ranks_, rank);
  return place < 0 ? -1 : near_->status(place).step;
} catch (const Error&) {  // it has ended as well
  return -1;
}

// ---- messages

JoinedChannel& JoinedEngine::publishing(Channel& channel) {
  JoinedChannel& joined = sent_here(channel);
  check_far();
  if (joined.is_sending()) return joined;
  check();
  throw InvalidArgument(fmt::format("rank {} publishes on a channel that it has closed", info_.rank));
}

/// Publishes on this host first, so that its receivers need not wait for the send to other hosts.
bool JoinedEngine::try_send(JoinedChannel& channel, const Lease& lease) {
  if (channel.outgoing() && !has_room(*far_, *channel.outgoing().channel)) return false;
  if (channel.near() && !near_->try_publish(*channel.near().channel, lease)) return false;
  return !channel.outgoing() || far_->try_publish(*channel.outgoing().channel, lease);
}

bool JoinedEngine::try_publish(Channel& channel, Block& block, std::size_t bytes) {
  JoinedChannel& joined = publishing(channel);
  check_message(block, bytes);
  return call([&] {
    if (!joined.outgoing()) return near_->try_publish(*joined.near().channel, block, bytes);
    if (block.home().get() != shared_->home) {
      throw InvalidArgument("the block to publish was not allocated from this engine; use try_allocate()");
    }
    const auto shared = std::make_shared<Block>(std::move(block));
    if (try_send(joined, {shared->memory().first(bytes), shared})) return true;
    block = std::move(*shared);
    return false;
  });
}

bool JoinedEngine::try_publish(Channel& channel, const Lease& lease) {
  JoinedChannel& joined = publishing(channel);
  check_message(lease);
  return call([&] { return try_send(joined, lease); });
}

Received JoinedEngine::try_receive(Channel& channel) {
  JoinedChannel& joined = received_here(channel);
  const EndpointRef& endpoint = joined.receiving();
  const bool has_ended = has_cause();
  if (has_ended && is_aborted(*cause())) check();
  return call([&] {
    Received received = endpoint.engine->try_receive(*endpoint.channel);
    if (received.message || received.ended) return received;
    if (has_ended) check();
    Channel* const it[] = {&channel};
    check_forwarders(it);
    return received;
  });
}

std::vector<Engine::Holder> JoinedEngine::holders(Channel& channel) {
  const JoinedChannel& joined = sent_here(channel);
  return call([&] {
    check_far();
    std::vector<Holder> found;
    if (joined.near()) found = near_->holders(*joined.near().channel);
    for (Holder& holder : found) holder.rank = near_ranks_[static_cast<std::size_t>(holder.rank)];
    if (!joined.outgoing()) return found;
    const auto elsewhere = far_->holders(*joined.outgoing().channel);
    found.insert(found.end(), elsewhere.begin(), elsewhere.end());
    return found;
  });
}

// ---- waiting

JoinedEngine::EngineConditions JoinedEngine::by_engine(const WaitFor& conditions) {
  EngineConditions wanted;
  for (Channel* const channel : conditions.receive) {
    JoinedChannel& joined = received_here(*channel);
    (joined.receives_near() ? wanted.near_receive : wanted.far_receive).push_back(joined.receiving().channel.get());
  }
  for (Channel* const channel : conditions.publish) {
    JoinedChannel& joined = sent_here(*channel);
    const bool far_is_full = joined.is_sending() && joined.outgoing() && !has_room(*far_, *joined.outgoing().channel);
    if (far_is_full) wanted.far_publish.push_back(joined.outgoing().channel.get());
    else if (joined.near()) wanted.near_publish.push_back(joined.near().channel.get());
    else wanted.is_ready = true;
  }
  return wanted;
}

Woken JoinedEngine::wait(const WaitFor& conditions, Deadline deadline) {
  const auto is_near = [](const JoinedChannel& channel) { return channel.near() && !channel.outgoing(); };
  const bool all_near = std::all_of(conditions.receive.begin(), conditions.receive.end(),
                                    [&](Channel* each) { return received_here(*each).receives_near(); }) &&
                        std::all_of(conditions.publish.begin(), conditions.publish.end(),
                                    [&](Channel* each) { return is_near(sent_here(*each)); });
  const std::function<void()> poll = [&, also = asking_statuses(*far_, conditions.poll)] {
    also();
    check();
    check_forwarders(conditions.receive);
  };
  return call([&] {
    if (has_cause()) {
      // Only messages that arrived before the end still count.
      const bool has_arrived =
          !is_aborted(*cause()) && wait_for_both({.receive = conditions.receive}, Deadline::now(), {}) == Woken::ready;
      if (!has_arrived) check();
      return Woken::ready;
    }
    return all_near ? wait_near(conditions, deadline, poll) : wait_for_both(conditions, deadline, poll);
  });
}

Woken JoinedEngine::wait_near(const WaitFor& conditions, Deadline deadline, const std::function<void()>& poll) {
  const EngineConditions wanted = by_engine(conditions);
  return near_->wait({.receive = wanted.near_receive,
                      .publish = wanted.near_publish,
                      .allocate = conditions.allocate,
                      .stop = conditions.stop,
                      .poll = &poll},
                     deadline);
}

Woken JoinedEngine::wait_for_both(const WaitFor& conditions, Deadline deadline, const std::function<void()>& poll) {
  FarChanges::Alarm alarm(shared_->relay->changes(), *near_);
  while (true) {
    alarm.reset();
    const EngineConditions wanted = by_engine(conditions);
    WaitFor near{.receive = wanted.near_receive, .publish = wanted.near_publish, .allocate = conditions.allocate};
    WaitFor far{.receive = wanted.far_receive};
    const bool is_ready = wanted.is_ready || near_->wait(near, Deadline::now()) == Woken::ready ||
                          far_->wait(far, Deadline::now()) == Woken::ready;
    if (is_ready) return Woken::ready;
    if (conditions.stop != nullptr && conditions.stop->load()) return Woken::stopped;
    if (deadline.expired()) return Woken::timeout;
    check();
    if (!near.receive.empty() || !near.publish.empty() || near.allocate != 0) {
      near.stop = &alarm.rung();
      near.poll = &poll;
      near_->wait(near, deadline);
    } else {
      far.publish = wanted.far_publish;
      far.stop = conditions.stop;
      far.poll = &poll;
      far_->wait(far, deadline);
    }
  }
}

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Engine> near, std::shared_ptr<Engine> far, const Options& options) {
  const EngineInfo& all = far->info();
  const int host = all.host_of[static_cast<std::size_t>(all.rank)];
  std::vector<int> near_ranks, job_ranks;
  for (int rank = 0; rank < all.size; ++rank) {
    job_ranks.push_back(rank);
    if (all.host_of[static_cast<std::size_t>(rank)] == host) near_ranks.push_back(rank);
  }
  const EngineInfo& here = near->info();
  if (here.size != static_cast<int>(near_ranks.size()) || here.rank != rank_in(near_ranks, all.rank)) {
    throw InvalidArgument(fmt::format(
        "rank {} of the {} engine is rank {} of {} on its host, and rank {} of {} of the {} engine: give the "
        "{} engine the same ranks in the same order",
        all.rank, all.name, rank_in(near_ranks, all.rank), near_ranks.size(), here.rank, here.size, here.name,
        here.name));
  }
  if (options.degree < 1) throw InvalidArgument(fmt::format("degree must be at least 1, got {}", options.degree));
  const auto changes = std::make_shared<FarChanges>();
  far->on_change([changes] { changes->notify(); });
  auto shared = std::make_shared<SharedState>();
  shared->options = options;
  shared->relay = std::make_shared<Relay>(changes, options);
  return std::make_shared<JoinedEngine>(std::move(near), std::move(far), std::move(near_ranks), std::move(job_ranks),
                                        std::move(shared));
}

}  // namespace levada::joined
