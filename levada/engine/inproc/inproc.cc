#include "levada/engine/inproc/inproc.h"

#include <fmt/format.h>

#include "levada/base/error.h"
#include "levada/engine/block_pool.h"
#include "levada/engine/event_count.h"
#include "levada/engine/inproc/group.h"
#include "levada/engine/ranks.h"

namespace levada::inproc {
namespace {

class InprocChannel final : public Channel {
 public:
  InprocChannel(std::shared_ptr<Group> group, std::shared_ptr<Stream> stream, int rank, std::span<const int> to)
      : Channel(stream->from(), std::vector(to.begin(), to.end()), stream->window()),
        group_(std::move(group)),
        stream_(std::move(stream)),
        rank_(rank) {}
  ~InprocChannel() override {
    if (sends()) group_->close_sender(*stream_);
    if (takes()) group_->close_taker(*stream_, rank_);
  }

  const Group* group() const { return group_.get(); }
  Stream& stream() const { return *stream_; }
  int rank() const { return rank_; }
  bool sends() const { return from() == rank_; }
  bool takes() const { return rank_in(to(), rank_) >= 0; }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Stream> stream_;
  int rank_;
};

/// What a lease holds: the sender's block, and the taker's place in holders().
struct Leased {
  Leased(std::shared_ptr<const void> block_, std::shared_ptr<std::atomic<int>> count_)
      : block(std::move(block_)), count(std::move(count_)) {
    count->fetch_add(1);
  }
  ~Leased() { count->fetch_sub(1); }
  Leased(const Leased&) = delete;
  Leased& operator=(const Leased&) = delete;

  std::shared_ptr<const void> block;
  std::shared_ptr<std::atomic<int>> count;
};

class InprocEngine final : public Engine {
 public:
  InprocEngine(std::shared_ptr<Group> group, int rank, std::shared_ptr<EventCount> changed,
               std::shared_ptr<BlockPool> pool)
      : group_(std::move(group)), changed_(std::move(changed)), pool_(std::move(pool)) {
    info_.name = "inproc";
    info_.rank = rank;
    info_.size = group_->size();
    info_.host_of.assign(static_cast<std::size_t>(info_.size), 0);
    info_.zero_copy = true;
  }
  ~InprocEngine() override { group_->leave(info_.rank); }

  const EngineInfo& info() const override { return info_; }

  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override {
    auto group = group_->subgroup(info_.rank, ranks, name);
    return std::make_shared<InprocEngine>(std::move(group), rank_in(ranks, info_.rank), changed_, pool_);
  }

  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) override {
    return std::make_shared<InprocChannel>(group_, group_->open(info_.rank, from, to, window), info_.rank, to);
  }

  std::optional<Block> try_allocate(std::size_t bytes) override {
    group_->check();
    return pool_->try_allocate(bytes);
  }

  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override {
    const auto& mine = as_sender(channel);
    if (block.home() != pool_) {
      throw InvalidArgument("the block to publish was not allocated from this engine; use try_allocate()");
    }
    check_message(block, bytes);
    return group_->try_publish(info_.rank, mine.stream(), block, bytes);
  }

  Received try_receive(Channel& channel) override {
    auto taken = group_->try_receive(info_.rank, as_taker(channel).stream());
    if (!taken.message) return {.message = {}, .ended = taken.ended};
    return {.message =
                Lease{.bytes = taken.message->bytes,
                      .hold = std::make_shared<Leased>(std::move(taken.message->hold), std::move(taken.leased))}};
  }

  Woken wait(const WaitFor& conditions, Deadline deadline) override {
    std::vector<const Stream*> take, publish;
    for (Channel* channel : conditions.receive) take.push_back(&as_taker(*channel).stream());
    for (Channel* channel : conditions.publish) publish.push_back(&as_sender(*channel).stream());
    for (;;) {
      const std::uint64_t seen = changed_->count();
      if (group_->ready(info_.rank, {.take = take, .publish = publish})) return Woken::ready;
      if (conditions.allocate != 0 && pool_->may_allocate(conditions.allocate)) return Woken::ready;
      if (conditions.stop != nullptr && conditions.stop->load()) return Woken::stopped;
      if (deadline.expired()) return Woken::timeout;
      changed_->wait(seen, Deadline::after(conditions.poll_before_sleep(deadline)));
    }
  }
  void wake() override { changed_->notify(); }

  void abort(std::string_view reason) noexcept override { group_->abort(info_.rank, reason); }

  void close(Channel& channel) noexcept override {
    const auto* mine = dynamic_cast<const InprocChannel*>(&channel);
    if (mine == nullptr || !owns(*mine)) return;
    if (mine->sends()) group_->close_sender(mine->stream());
    else group_->close_taker(mine->stream(), info_.rank);
  }

  void post(const Status& status) override { group_->post(info_.rank, status); }
  Status status(int rank) override { return group_->status(rank); }
  std::vector<Holder> holders(Channel& channel) override { return group_->holders(as_sender(channel).stream()); }
  std::uint64_t memory_in_use() override { return pool_->taken(); }
  std::uint64_t trim() override { return pool_->trim(); }

  void die() { group_->lose(info_.rank); }
  Group& group() { return *group_; }

 private:
  bool owns(const InprocChannel& channel) const {
    return channel.group() == group_.get() && channel.rank() == info_.rank;
  }
  InprocChannel& as_own(Channel& channel) const {
    auto* mine = dynamic_cast<InprocChannel*>(&channel);
    if (mine == nullptr || !owns(*mine)) refuse_channel(info_.rank);
    return *mine;
  }
  InprocChannel& as_sender(Channel& channel) const {
    auto& mine = as_own(channel);
    check_sender(info_.rank, channel);
    return mine;
  }
  InprocChannel& as_taker(Channel& channel) const {
    auto& mine = as_own(channel);
    check_receiver(info_.rank, channel);
    return mine;
  }

  EngineInfo info_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<EventCount> changed_;
  std::shared_ptr<BlockPool> pool_;
};

}  // namespace

std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options) {
  if (size < 1) throw InvalidArgument(fmt::format("a group of {} ranks: give at least 1", size));
  std::vector<std::shared_ptr<EventCount>> events;
  for (int rank = 0; rank < size; ++rank) events.push_back(std::make_shared<EventCount>());
  const auto group = std::make_shared<Group>(events);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < size; ++rank) {
    const auto& changed = events[static_cast<std::size_t>(rank)];
    engines.push_back(std::make_shared<InprocEngine>(group, rank, changed,
                                                     std::make_shared<BlockPool>(options.memory_bytes, changed)));
  }
  return engines;
}

void lose(Engine& engine) {
  auto* mine = dynamic_cast<InprocEngine*>(&engine);
  if (mine == nullptr) throw InvalidArgument("only a rank of an inproc group can be lost by request");
  mine->die();
}

}  // namespace levada::inproc
