#include "levada/engine/inproc/inproc.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>
#include <variant>

#include "levada/base/error.h"
#include "levada/engine/block_pool.h"
#include "levada/engine/endpoint.h"
#include "levada/engine/event_count.h"
#include "levada/engine/group_engine.h"

namespace levada::inproc {
namespace {

/// Number of leases that each rank holds of one channel's messages.
using LeaseCounts = std::vector<std::atomic<int>>;

struct InprocChannelState final : ChannelState {
  std::shared_ptr<LeaseCounts> leases;  ///< owned by the sender
};

/// The hold of an Arrival: the owner of the bytes, and the counts of its leases.
struct SharedMessage {
  std::shared_ptr<const void> hold;
  std::shared_ptr<LeaseCounts> leases;
};

struct LeaseState {
  LeaseState(std::shared_ptr<const void> message_, std::shared_ptr<LeaseCounts> counts_, int rank_)
      : message(std::move(message_)), counts(std::move(counts_)), rank(static_cast<std::size_t>(rank_)) {
    (*counts)[rank].fetch_add(1);
  }
  ~LeaseState() { (*counts)[rank].fetch_sub(1); }
  LeaseState(const LeaseState&) = delete;
  LeaseState& operator=(const LeaseState&) = delete;

  std::shared_ptr<const void> message;
  std::shared_ptr<LeaseCounts> counts;
  std::size_t rank;
};

/// State that the ranks share: one mailbox for each, and their statuses.
class Network {
 public:
  struct Message {
    std::uint64_t key = 0;
    Arrival arrival;
  };
  struct Envelope {
    int from = 0;
    std::variant<Message, Notice, Ending> content;
  };

  Network(int size, const std::shared_ptr<EventCount>* changed) : mailboxes_(static_cast<std::size_t>(size)) {
    for (Mailbox& mailbox : mailboxes_) mailbox.changed = *changed++;
  }

  int size() const { return static_cast<int>(mailboxes_.size()); }

  /// Must be called before any rank makes another call.
  void set_memory(int rank, ByteView memory) { mailbox(rank).memory = memory; }
  ByteView memory(int rank) { return mailbox(rank).memory; }

  void send(int to, Envelope envelope) {
    if (mailbox(envelope.from).is_lost) return;
    Mailbox& there = mailbox(to);
    {
      const std::lock_guard lock(there.mutex);
      if (there.is_closed) return;
      there.envelopes.push_back(std::move(envelope));
      there.has_envelopes = true;
    }
    there.changed->notify();
  }
  /// Drops messages that have not been taken, and all later ones.
  void close(int rank) {
    Mailbox& own = mailbox(rank);
    std::deque<Envelope> dropped;  // outlives the lock
    const std::lock_guard lock(own.mutex);
    own.is_closed = true;
    dropped.swap(own.envelopes);
  }
  std::deque<Envelope> take(int rank) {
    Mailbox& own = mailbox(rank);
    if (!own.has_envelopes) return {};
    const std::lock_guard lock(own.mutex);
    own.has_envelopes = false;
    return std::exchange(own.envelopes, {});
  }
  void lose(int rank) {
    for (int to = 0; to < size(); ++to) {
      send(to, {rank, Ending{.kind = ErrorKind::peer_lost, .rank = rank, .detail = "as a test requested"}});
    }
    mailbox(rank).is_lost = true;
  }

  void post(std::uint64_t group, int rank, const Status& status) {
    const std::lock_guard lock(mutex_);
    auto& posted = mailbox(rank).statuses;
    const auto found =
        std::find_if(posted.begin(), posted.end(), [&](const auto& each) { return each.first == group; });
    if (found != posted.end()) return found->second = status, void();
    if (posted.size() == max_statuses) posted.pop_front();
    posted.emplace_back(group, status);
  }
  Status status(std::uint64_t group, int rank) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, status] : mailbox(rank).statuses) {
      if (key == group) return status;
    }
    return {};
  }

 private:
  struct Mailbox {
    std::shared_ptr<EventCount> changed;
    ByteView memory;  ///< memory of the rank's blocks
    std::atomic<bool> is_lost = false;
    std::atomic<bool> has_envelopes = false;
    std::mutex mutex;
    std::deque<Envelope> envelopes;                         ///< guarded by mutex
    bool is_closed = false;                                 ///< guarded by mutex
    std::deque<std::pair<std::uint64_t, Status>> statuses;  ///< by group; guarded by Network::mutex_
  };
  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }

  std::vector<Mailbox> mailboxes_;
  static constexpr std::size_t max_statuses = 16;  ///< statuses of a rank, in the groups in which it posted last
  std::mutex mutex_;
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(std::shared_ptr<Network> network, int rank, std::shared_ptr<EventCount> changed,
                 const Options& options)
      : Endpoint(
            {.name = "inproc", .rank = rank, .host_of = std::vector<int>(static_cast<std::size_t>(network->size()))},
            changed,
            make_heap_pool(options.memory_bytes, {.engine = "inproc", .on_free = [changed] { changed->notify(); }}),
            traits_of(options)),
        network_(std::move(network)) {
    network_->set_memory(rank, pool_->memory());
  }

  bool shares_memory(int /*rank*/) const override { return true; }
  std::optional<std::uint64_t> position_of(ByteView bytes) const override {
    return levada::position_of(pool_->memory(), bytes);
  }
  std::optional<ByteView> view(int rank, std::uint64_t position, std::uint64_t bytes) const override {
    return view_of(network_->memory(rank), position, bytes);
  }
  void post(Group& group, const Status& status) override {
    check(group);
    network_->post(group.key(), rank(), status);
  }
  Status status(Group& group, int rank) override {
    check(group);
    return last_status(group, rank);
  }
  void lose() { network_->lose(rank()); }

 protected:
  void drain() override {
    for (auto& [from, content] : network_->take(rank())) {
      if (auto* const message = std::get_if<Network::Message>(&content)) {
        if (!table_.is_gone(from)) table_.arrive(from, message->key, std::move(message->arrival));
      } else if (const auto* const notice = std::get_if<Notice>(&content)) {
        table_.apply(from, *notice);
      } else {
        auto& ending = std::get<Ending>(content);
        pass_on(ending);
        table_.end(std::move(ending));
      }
    }
  }
  Status last_status(const Group& group, int rank) override {
    return network_->status(group.key(), group.endpoint_rank(rank));
  }
  void carry(const AddressedNotice& addressed) override {
    network_->send(addressed.to, {rank(), addressed.notice});
    if (addressed.notice.kind == Notice::Kind::departed) network_->close(rank());
  }
  void carry(const Group& group, const Ending& ending) override {
    for (const int to : group.ranks) {
      if (to != rank()) network_->send(to, {rank(), ending});
    }
  }
  void send(ChannelState& channel, Message message) override {
    auto& leases = static_cast<InprocChannelState&>(channel).leases;
    if (!leases) leases = std::make_shared<LeaseCounts>(static_cast<std::size_t>(size()));
    if (message.block) message.hold = std::make_shared<const Block>(std::move(message.block));
    const Arrival arrival{message.bytes,
                          std::make_shared<SharedMessage>(SharedMessage{std::move(message.hold), leases})};
    for (const auto& receiver : channel.receivers) {
      if (table_.receiver_is_over(channel, receiver)) continue;
      if (receiver.rank == rank()) table_.arrive(rank(), channel.key, arrival);
      else network_->send(receiver.rank, {rank(), Network::Message{channel.key, arrival}});
    }
    notify();
  }
  Received lease(ChannelState& channel, Arrival arrival) override {
    if (channel.sends) notify();  // receiving makes room for this rank's sending end
    const auto& counts = static_cast<const SharedMessage*>(arrival.hold.get())->leases;
    return {.message = Lease{arrival.bytes, std::make_shared<LeaseState>(arrival.hold, counts, rank())}};
  }
  int num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) override {
    const auto& leases = static_cast<InprocChannelState&>(channel).leases;
    return leases ? (*leases)[static_cast<std::size_t>(receiver.rank)].load() : 0;
  }

 private:
  /// Forwards the first abort of a group before this rank acts on it. This rank's envelopes may reach the other ranks
  /// before those of the rank that aborted, and they would then take this rank's leaving for the cause.
  void pass_on(const Ending& ending) {
    const Group* const group = table_.group(ending.group);
    if (group != nullptr && is_abort(ending) && !table_.is_aborted(ending.group)) carry(*group, ending);
  }
  static Traits traits_of(const Options& options) {
    Traits traits{.heartbeat = options.heartbeat};
    traits.channels.make_state = []() -> std::shared_ptr<ChannelState> {
      return std::make_shared<InprocChannelState>();
    };
    return traits;
  }

  std::shared_ptr<Network> network_;
};

}  // namespace

std::vector<std::shared_ptr<Engine>> make_group(int size, const Options& options) {
  if (size < 1) throw InvalidArgument(fmt::format("a group must have at least 1 rank, got {}", size));
  std::vector<std::shared_ptr<EventCount>> changed;
  for (int rank = 0; rank < size; ++rank) changed.push_back(std::make_shared<EventCount>());
  const auto network = std::make_shared<Network>(size, changed.data());
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < size; ++rank) {
    engines.push_back(make_engine(
        std::make_shared<InprocEndpoint>(network, rank, changed[static_cast<std::size_t>(rank)], options), "inproc"));
  }
  return engines;
}

void lose(Engine& engine) {
  auto* const endpoint = dynamic_cast<InprocEndpoint*>(endpoint_of(engine));
  if (endpoint == nullptr) throw InvalidArgument("only ranks of an inproc group can be lost on request");
  endpoint->lose();
}

}  // namespace levada::inproc
