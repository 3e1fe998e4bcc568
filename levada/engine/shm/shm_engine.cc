#include "levada/engine/shm/shm_engine.h"

#include <utility>

#include "levada/engine/ranks.h"
#include "levada/engine/shm/member.h"
#include "levada/engine/stream_channel.h"

namespace levada::shm {
namespace {

using ShmChannel = StreamChannel<Member, Stream>;

class ShmEngine final : public Engine {
 public:
  ShmEngine(std::shared_ptr<Presence<Member>> presence, GroupState group)
      : presence_(std::move(presence)), member_(*presence_->member), group_(std::move(group)), naming_(group_.key()) {
    info_.name = "shm";
    info_.rank = group_.rank;
    info_.size = static_cast<int>(group_.ranks.size());
    info_.host_of.assign(group_.ranks.size(), 0);
    info_.zero_copy = true;
  }
  ~ShmEngine() override { member_.leave(group_); }

  const EngineInfo& info() const override { return info_; }
  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) override;

  std::optional<Block> try_allocate(std::size_t bytes) override { return member_.try_allocate(group_, bytes); }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override;
  Received try_receive(Channel& channel) override { return member_.try_receive(group_, *taken_here(channel)); }
  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    return member_.make_private(taken_here(channel), lease);
  }

  Woken wait(const WaitFor& conditions, Deadline deadline) override;
  void wake() override { member_.wake(); }
  void abort(std::string_view reason) noexcept override { member_.abort(group_, reason); }
  void close(Channel& channel) noexcept override;

  void post(const Status& status) override { member_.post(group_, status); }
  Status status(int rank) override;
  std::vector<Holder> holders(Channel& channel) override;
  std::uint64_t memory_in_use() override { return member_.memory_in_use(); }
  std::uint64_t trim() override { return member_.trim(); }

 private:
  const std::shared_ptr<Stream>& stream_of(Channel& channel) const;
  const std::shared_ptr<Stream>& taken_here(Channel& channel) const;
  const std::shared_ptr<Stream>& sent_here(Channel& channel) const;

  std::shared_ptr<Presence<Member>> presence_;
  Member& member_;
  Group group_;
  Naming naming_;
  EngineInfo info_;
};

std::shared_ptr<Engine> ShmEngine::subgroup(std::span<const int> ranks, std::string_view name) {
  member_.check(group_);
  GroupState group = subgroup_of(group_, naming_, ranks, name);
  member_.enter(group);
  return std::make_shared<ShmEngine>(presence_, std::move(group));
}

std::shared_ptr<Channel> ShmEngine::open(int from, std::span<const int> to, int window) {
  check_channel(info_.rank, info_.size, from, to, window);
  member_.check(group_);
  std::vector<int> takers;
  for (const int taker : to) takers.push_back(group_.outer(taker));
  auto stream = member_.open(group_, naming_.channel(from, to), group_.outer(from), std::move(takers), window);
  return std::make_shared<ShmChannel>(presence_->member, group_.key(), std::move(stream), from,
                                      std::vector<int>(to.begin(), to.end()), window);
}

const std::shared_ptr<Stream>& ShmEngine::stream_of(Channel& channel) const {
  if (const auto* own = ShmChannel::find(channel, member_, group_.key())) return own->stream();
  refuse_channel(info_.rank);
}

const std::shared_ptr<Stream>& ShmEngine::taken_here(Channel& channel) const {
  const auto& stream = stream_of(channel);
  check_receiver(info_.rank, channel);
  return stream;
}

const std::shared_ptr<Stream>& ShmEngine::sent_here(Channel& channel) const {
  const auto& stream = stream_of(channel);
  check_sender(info_.rank, channel);
  return stream;
}

bool ShmEngine::try_publish(Channel& channel, Block& block, std::size_t bytes) {
  const auto& stream = sent_here(channel);
  check_message(block, bytes);
  return member_.try_publish(group_, stream, block, bytes);
}

Woken ShmEngine::wait(const WaitFor& conditions, Deadline deadline) {
  for (Channel* const channel : conditions.receive) taken_here(*channel);
  for (Channel* const channel : conditions.publish) sent_here(*channel);
  return member_.wait(group_, conditions, deadline);
}

void ShmEngine::close(Channel& channel) noexcept {
  const auto* const own = ShmChannel::find(channel, member_, group_.key());
  if (own == nullptr) return;
  if (channel.from() == info_.rank) member_.close_sender(*own->stream());
  else member_.close_taker(*own->stream());
}

Status ShmEngine::status(int rank) {
  check_ranks(std::span(&rank, 1), info_.size, "the status");
  return member_.status(group_, group_.outer(rank));
}

std::vector<Engine::Holder> ShmEngine::holders(Channel& channel) {
  auto found = member_.holders(group_, *sent_here(channel));
  for (Holder& holder : found) holder.rank = group_.rank_of(holder.rank);
  return found;
}

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Member> member) {
  auto group = group_of_all("host", member->rank(), member->size());
  return std::make_shared<ShmEngine>(std::make_shared<Presence<Member>>(std::move(member)), std::move(group));
}

}  // namespace levada::shm
