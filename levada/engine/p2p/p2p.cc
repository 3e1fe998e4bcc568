#include "levada/engine/p2p/p2p.h"

#include <utility>

#include "levada/base/error.h"
#include "levada/engine/p2p/member.h"
#include "levada/engine/ranks.h"
#include "levada/engine/stream_channel.h"

namespace levada::p2p {
namespace {

using P2pChannel = StreamChannel<Member, Stream>;

class P2pEngine final : public Engine {
 public:
  P2pEngine(std::shared_ptr<Presence<Member>> presence, GroupState group)
      : presence_(std::move(presence)), member_(*presence_->member), group_(std::move(group)), naming_(group_.key()) {
    info_.name = member_.wire().name();
    info_.rank = group_.rank;
    info_.size = static_cast<int>(group_.ranks.size());
    for (const int rank : group_.ranks) {
      info_.host_of.push_back(member_.wire().host_of()[static_cast<std::size_t>(rank)]);
    }
    member_.enter(group_);
  }
  ~P2pEngine() override { member_.leave(group_); }

  const EngineInfo& info() const override { return info_; }
  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) override;

  std::optional<Block> try_allocate(std::size_t bytes) override { return member_.try_allocate(group_, bytes); }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override;
  Received try_receive(Channel& channel) override { return member_.try_receive(group_, taken_here(channel)); }
  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    taken_here(channel);
    const bool is_shared = channel.from() == info_.rank && channel.to().size() > 1;
    if (is_shared) return {};  // others may still be sent the same bytes
    return {const_cast<std::byte*>(lease.bytes.data()), lease.bytes.size()};
  }

  Woken wait(const WaitFor& conditions, Deadline deadline) override;
  void wake() override { member_.wake(); }
  void abort(std::string_view reason) noexcept override { member_.abort(group_, reason); }
  void close(Channel& channel) noexcept override;

  void post(const Status& status) override { member_.post(group_, status); }
  Status status(int rank) override {
    check_ranks(std::span(&rank, 1), info_.size, "the status");
    return member_.status(group_, rank);
  }
  std::vector<Holder> holders(Channel& channel) override;
  std::uint64_t memory_in_use() override { return member_.memory_in_use(); }
  std::uint64_t trim() override { return member_.trim(); }

 private:
  Stream& stream_of(Channel& channel) const;
  Stream& taken_here(Channel& channel) const;
  Stream& sent_here(Channel& channel) const;

  std::shared_ptr<Presence<Member>> presence_;
  Member& member_;
  Group group_;
  Naming naming_;
  EngineInfo info_;
};

std::shared_ptr<Engine> P2pEngine::subgroup(std::span<const int> ranks, std::string_view name) {
  member_.check(group_);
  return std::make_shared<P2pEngine>(presence_, subgroup_of(group_, naming_, ranks, name));
}

std::shared_ptr<Channel> P2pEngine::open(int from, std::span<const int> to, int window) {
  check_channel(info_.rank, info_.size, from, to, window);
  member_.check(group_);
  Stream::Terms terms{.groups = group_.keys, .from = group_.outer(from), .to = {}, .window = window};
  for (const int taker : to) terms.to.push_back(group_.outer(taker));
  auto stream = member_.open(group_, naming_.channel(from, to), std::move(terms));
  return std::make_shared<P2pChannel>(presence_->member, group_.key(), std::move(stream), from,
                                      std::vector<int>(to.begin(), to.end()), window);
}

Stream& P2pEngine::stream_of(Channel& channel) const {
  if (const auto* own = P2pChannel::find(channel, member_, group_.key())) return *own->stream();
  refuse_channel(info_.rank);
}

Stream& P2pEngine::taken_here(Channel& channel) const {
  Stream& stream = stream_of(channel);
  check_receiver(info_.rank, channel);
  return stream;
}

Stream& P2pEngine::sent_here(Channel& channel) const {
  Stream& stream = stream_of(channel);
  check_sender(info_.rank, channel);
  return stream;
}

bool P2pEngine::try_publish(Channel& channel, Block& block, std::size_t bytes) {
  Stream& stream = sent_here(channel);
  check_message(block, bytes);
  return member_.try_publish(group_, stream, block, bytes);
}

Woken P2pEngine::wait(const WaitFor& conditions, Deadline deadline) {
  Member::Wanted streams;
  for (Channel* const channel : conditions.receive) streams.take.push_back(&taken_here(*channel));
  for (Channel* const channel : conditions.publish) streams.publish.push_back(&sent_here(*channel));
  return member_.wait(group_, conditions, streams, deadline);
}

void P2pEngine::close(Channel& channel) noexcept {
  const auto* const own = P2pChannel::find(channel, member_, group_.key());
  if (own == nullptr) return;
  if (channel.from() == info_.rank) member_.close_sender(*own->stream());
  else member_.close_taker(*own->stream());
}

std::vector<Engine::Holder> P2pEngine::holders(Channel& channel) {
  auto found = member_.holders(group_, sent_here(channel));
  for (Holder& holder : found) holder.rank = group_.rank_of(holder.rank);
  return found;
}

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Wire> wire, const Options& options) {
  const auto member = std::make_shared<Member>(wire, options);
  auto engine = std::make_shared<P2pEngine>(std::make_shared<Presence<Member>>(member),
                                            group_of_all("wire", member->rank(), member->size()));
  wire->start(member);
  return engine;
}

}  // namespace levada::p2p
