#include "levada/engine/group_engine.h"

#include <utility>
#include <vector>

#include "levada/engine/ranks.h"

namespace levada {
namespace {

/// Checks the arguments of callers and delegates everything else to the endpoint.
class GroupEngine final : public Engine {
 public:
  GroupEngine(std::shared_ptr<Endpoint> endpoint, Group group)
      : endpoint_(std::move(endpoint)), group_(std::move(group)), keys_(group_.key()) {
    const Endpoint::Identity& identity = endpoint_->identity();
    info_.name = identity.name;
    info_.rank = group_.rank;
    info_.size = static_cast<int>(group_.ranks.size());
    info_.degree = identity.degree;
    for (const int rank : group_.ranks) info_.host_of.push_back(identity.host_of[static_cast<std::size_t>(rank)]);
    endpoint_->enter(group_);
  }
  ~GroupEngine() override { endpoint_->leave(group_); }

  const EngineInfo& info() const override { return info_; }
  bool shares_memory(int rank) const override {
    check_ranks(std::span(&rank, 1), info_.size, "shared memory");
    return endpoint_->shares_memory(group_.endpoint_rank(rank));
  }
  std::optional<std::uint64_t> position_of(ByteView bytes) const override { return endpoint_->position_of(bytes); }
  bool keep_pages(ByteView bytes) const override { return endpoint_->keep_pages(bytes); }
  std::optional<ByteView> view(int rank, std::uint64_t position, std::uint64_t bytes) const override {
    check_ranks(std::span(&rank, 1), info_.size, "memory");
    return endpoint_->view(group_.endpoint_rank(rank), position, bytes);
  }

  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override {
    endpoint_->check(group_);
    return std::make_shared<GroupEngine>(endpoint_, subgroup_of(group_, keys_, ranks, name));
  }

  using Engine::open;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window, ChannelOptions options) override {
    check_channel(info_.rank, info_.size, from, to, window);
    endpoint_->check(group_);
    const auto key = keys_.channel(from, to, options.tag);
    auto state = endpoint_->open(group_, key, from, to, window, std::move(options));
    return std::make_shared<EndpointChannel>(endpoint_, group_.key(), std::move(state), from,
                                             std::vector<int>(to.begin(), to.end()), window);
  }

  using Engine::try_allocate;
  std::optional<Block> try_allocate(std::size_t bytes, BlockUse use) override {
    return endpoint_->try_allocate(group_, bytes, use);
  }

  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override {
    ChannelState& state = sent_here(channel);
    check_message(block, bytes);
    return endpoint_->try_publish(group_, state, block, bytes);
  }
  bool try_publish(Channel& channel, const Lease& lease) override {
    ChannelState& state = sent_here(channel);
    check_message(lease);
    return endpoint_->try_publish(group_, state, lease);
  }

  Received try_receive(Channel& channel) override { return endpoint_->try_receive(group_, received_here(channel)); }

  bool is_abandoned(Channel& channel) override { return endpoint_->is_abandoned(received_here(channel)); }

  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    return endpoint_->make_private(received_here(channel), lease);
  }

  Woken wait(const WaitFor& conditions, Deadline deadline) override {
    for (Channel* const channel : conditions.receive) received_here(*channel);
    for (Channel* const channel : conditions.publish) sent_here(*channel);
    return endpoint_->wait(group_, conditions, deadline);
  }
  void wake() override { endpoint_->wake(); }
  void on_change(std::function<void()> hook) override { endpoint_->on_change(std::move(hook)); }

  void abort(std::string_view reason, ErrorKind kind) noexcept override { endpoint_->abort(group_, reason, kind); }
  void report_lost(int rank, std::string_view how) noexcept override {
    if (rank >= 0 && rank < info_.size) endpoint_->report_lost(group_.endpoint_rank(rank), how);
  }
  std::optional<Cause> cause() override { return endpoint_->cause(group_); }
  void close(Channel& channel, End end) noexcept override {
    if (is_own(channel)) endpoint_->close(static_cast<EndpointChannel&>(channel).state(), end);
  }

  void post(const Status& status) override { endpoint_->post(group_, status); }
  Status status(int rank) override {
    check_ranks(std::span(&rank, 1), info_.size, "the status");
    return endpoint_->status(group_, rank);
  }
  void ask_statuses() override { endpoint_->ask_statuses(group_); }
  std::vector<Holder> holders(Channel& channel) override { return endpoint_->holders(group_, sent_here(channel)); }
  std::uint64_t memory_in_use() override { return endpoint_->memory_in_use(); }
  std::uint64_t trim() override { return endpoint_->trim(); }

  Endpoint* endpoint() const { return endpoint_.get(); }

 private:
  /// All channels of an endpoint are EndpointChannels.
  bool is_own(const Channel& channel) const {
    return channel.owner() == endpoint_.get() && static_cast<const EndpointChannel&>(channel).group() == group_.key();
  }
  ChannelState& state_of(Channel& channel) const {
    if (!is_own(channel)) throw_foreign_channel(info_.rank);
    return static_cast<EndpointChannel&>(channel).state();
  }
  ChannelState& sent_here(Channel& channel) const {
    ChannelState& state = state_of(channel);
    if (!state.sends) throw_not_sender(info_.rank, channel);
    return state;
  }
  ChannelState& received_here(Channel& channel) const {
    ChannelState& state = state_of(channel);
    if (!state.receives) throw_not_receiver(info_.rank, channel);
    return state;
  }

  std::shared_ptr<Endpoint> endpoint_;
  Group group_;
  KeyDeriver keys_;
  EngineInfo info_;
};

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Endpoint> endpoint, std::string_view name) {
  Group group = root_group(name, endpoint->rank(), endpoint->size());
  return std::make_shared<GroupEngine>(std::move(endpoint), std::move(group));
}

Endpoint* endpoint_of(Engine& engine) {
  auto* const own = dynamic_cast<GroupEngine*>(&engine);
  return own != nullptr ? own->endpoint() : nullptr;
}

}  // namespace levada
