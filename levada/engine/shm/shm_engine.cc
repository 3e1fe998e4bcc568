#include "levada/engine/shm/shm_engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/engine/ranks.h"
#include "levada/engine/shm/channel.h"

namespace levada::shm {
namespace {

/// As long as one of a process's engines lives, it has not left.
struct Presence {
  explicit Presence(std::shared_ptr<Member> its_member) : member(std::move(its_member)) {}
  ~Presence() { member->leave_host(); }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  std::shared_ptr<Member> member;
};

class ShmEngine final : public Engine {
 public:
  ShmEngine(std::shared_ptr<Presence> presence, Group group)
      : presence_(std::move(presence)), member_(*presence_->member), group_(std::move(group)), naming_(group_.key()) {
    info_.name = "shm";
    info_.rank = group_.rank;
    info_.size = static_cast<int>(group_.ranks.size());
    info_.host_of.assign(group_.ranks.size(), 0);
    info_.zero_copy = true;
    info_.background = true;
  }
  ~ShmEngine() override { member_.leave(group_); }

  const EngineInfo& info() const override { return info_; }
  std::shared_ptr<Engine> subgroup(std::span<const int> ranks, std::string_view name) override;
  std::shared_ptr<Channel> open(int from, std::span<const int> to, int window) override;

  std::optional<Block> try_allocate(std::size_t bytes) override { return member_.try_allocate(group_, bytes); }
  bool try_publish(Channel& channel, Block& block, std::size_t bytes) override;
  std::optional<Lease> try_take(Channel& channel) override {
    return member_.try_take(group_, *taken_here(channel, "takes from"));
  }
  std::span<std::byte> make_private(Channel& channel, Lease& lease) override {
    return member_.make_private(taken_here(channel, "makes private what came from"), lease);
  }
  bool ended(Channel& channel) override { return member_.ended(group_, *taken_here(channel, "asks for the end of")); }
  void place(Channel& channel, Block block) override {
    if (!block) throw InvalidArgument("an empty block cannot be placed; allocate one");
    member_.place(group_, *taken_here(channel, "places a block for"), std::move(block));
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
  int host_rank(int rank) const { return group_.ranks[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<Stream>& stream_of(Channel& channel) const;
  const std::shared_ptr<Stream>& taken_here(Channel& channel, const char* what) const;
  const std::shared_ptr<Stream>& sent_here(Channel& channel, const char* what) const;

  std::shared_ptr<Presence> presence_;
  Member& member_;
  Group group_;
  Naming naming_;
  EngineInfo info_;
};

std::shared_ptr<Engine> ShmEngine::subgroup(std::span<const int> ranks, std::string_view name) {
  member_.check(group_);
  Group group;
  group.rank = check_subgroup(info_.rank, info_.size, ranks);
  group.keys = group_.keys;
  group.keys.insert(group.keys.begin(), naming_.subgroup(ranks, name));
  for (const int rank : ranks) group.ranks.push_back(host_rank(rank));
  member_.enter(group);
  return std::make_shared<ShmEngine>(presence_, std::move(group));
}

std::shared_ptr<Channel> ShmEngine::open(int from, std::span<const int> to, int window) {
  check_channel(info_.rank, info_.size, from, to, window);
  member_.check(group_);
  std::vector<int> takers;
  for (const int taker : to) takers.push_back(host_rank(taker));
  auto stream = member_.open(group_, naming_.channel(from, to), host_rank(from), std::move(takers), window);
  return std::make_shared<StreamChannel>(presence_->member, std::move(stream), from,
                                         std::vector<int>(to.begin(), to.end()), window);
}

const std::shared_ptr<Stream>& ShmEngine::stream_of(Channel& channel) const {
  const auto* ours = dynamic_cast<const StreamChannel*>(&channel);
  if (ours == nullptr || ours->member() != &member_ || ours->stream()->groups != group_.keys) {
    throw InvalidArgument(fmt::format(
        "rank {} uses a channel that another engine opened; pass it to the engine whose open() gave it", info_.rank));
  }
  return ours->stream();
}

const std::shared_ptr<Stream>& ShmEngine::taken_here(Channel& channel, const char* what) const {
  const auto& stream = stream_of(channel);
  if (stream->takes) return stream;
  throw InvalidArgument(fmt::format("rank {} {} a channel from rank {} to ranks {}, of which it is no taker",
                                    info_.rank, what, channel.from(), fmt::join(channel.to(), ", ")));
}

const std::shared_ptr<Stream>& ShmEngine::sent_here(Channel& channel, const char* what) const {
  const auto& stream = stream_of(channel);
  if (stream->sends) return stream;
  throw InvalidArgument(fmt::format("rank {} {} a channel whose sender is rank {}", info_.rank, what, channel.from()));
}

bool ShmEngine::try_publish(Channel& channel, Block& block, std::size_t bytes) {
  const auto& stream = sent_here(channel, "publishes on");
  if (bytes == 0 || bytes > block.memory().size()) {
    throw InvalidArgument(fmt::format("rank {} publishes {} bytes of a block of {}; a message has at least one byte",
                                      info_.rank, bytes, block.memory().size()));
  }
  return member_.try_publish(group_, stream, block, bytes);
}

Woken ShmEngine::wait(const WaitFor& conditions, Deadline deadline) {
  for (Channel* const channel : conditions.take) taken_here(*channel, "waits for messages of");
  for (Channel* const channel : conditions.publish) sent_here(*channel, "waits for room in");
  return member_.wait(group_, conditions, deadline);
}

void ShmEngine::close(Channel& channel) noexcept {
  const auto* ours = dynamic_cast<const StreamChannel*>(&channel);
  if (ours == nullptr || ours->member() != &member_) return;
  if (channel.from() == info_.rank) member_.close_sender(*ours->stream());
  else member_.close_taker(*ours->stream());
}

Status ShmEngine::status(int rank) {
  check_ranks(std::span(&rank, 1), info_.size, "the status");
  return member_.status(group_, host_rank(rank));
}

std::vector<Engine::Holder> ShmEngine::holders(Channel& channel) {
  auto found = member_.holders(group_, *sent_here(channel, "asks for the holders of"));
  for (Holder& holder : found) holder.rank = group_.rank_of(holder.rank);
  return found;
}

}  // namespace

std::shared_ptr<Engine> make_engine(std::shared_ptr<Member> member) {
  Group group;
  group.keys = {hash64(as_bytes("host"))};
  group.ranks.resize(static_cast<std::size_t>(member->size()));
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.rank = member->rank();
  return std::make_shared<ShmEngine>(std::make_shared<Presence>(std::move(member)), std::move(group));
}

}  // namespace levada::shm
