// The leases that receivers hold on messages, and the return of the messages' blocks.
#include <algorithm>

#include "levada/base/assert.h"

#include "levada/engine/shm/endpoint.h"

namespace levada::shm {
namespace {

/// Finding written pages takes a few system calls; copying less than this is as fast.
constexpr std::size_t min_private_bytes = std::size_t{256} << 10;

std::uint32_t slot_of(std::uint64_t id) {
  return static_cast<std::uint32_t>(id >> 32);
}
std::uint32_t generation_of(std::uint64_t id) {
  return static_cast<std::uint32_t>(id);
}

}  // namespace

// ---- receiving

/// The hold of a lease.
class ShmEndpoint::LeaseState {
 public:
  LeaseState(std::shared_ptr<const ShmEndpoint> endpoint, std::shared_ptr<const ChannelState> channel, std::uint64_t id)
      : endpoint_(std::move(endpoint)), channel_(std::move(channel)), id_(id) {}
  ~LeaseState() {
    if (!endpoint_->is_usable()) return;
    const Control& control = endpoint_->control_;
    const ChannelSpec& spec = channel_->spec;
    control.ack(spec.from, slot_of(id_), endpoint_->rank()).mark_returned(generation_of(id_));
    if (!control.all_beyond(SlotAck::received, spec.from, slot_of(id_), generation_of(id_), spec.to)) return;
    endpoint_->wake_for_space(spec.from, wake_for_memory);
  }
  LeaseState(const LeaseState&) = delete;
  LeaseState& operator=(const LeaseState&) = delete;

 private:
  std::shared_ptr<const ShmEndpoint> endpoint_;
  std::shared_ptr<const ChannelState> channel_;  ///< open, so that its spec does not change
  std::uint64_t id_;
};

/// The hold of a lease with a private view.
class ShmEndpoint::PrivateLeaseState {
 public:
  PrivateLeaseState(std::shared_ptr<const ShmEndpoint> endpoint, std::shared_ptr<const void> lease,
                    PrivateViews::View view)
      : endpoint_(std::move(endpoint)), lease_(std::move(lease)), view_(std::move(view)) {}
  ~PrivateLeaseState() {
    // Close the view before returning the block, which may be reused at once.
    if (endpoint_->is_usable()) endpoint_->views_->close(std::move(view_));
  }
  PrivateLeaseState(const PrivateLeaseState&) = delete;
  PrivateLeaseState& operator=(const PrivateLeaseState&) = delete;

 private:
  std::shared_ptr<const ShmEndpoint> endpoint_;
  std::shared_ptr<const void> lease_;
  PrivateViews::View view_;
};

Received ShmEndpoint::lease(ChannelState& channel, Arrival arrival) {
  const auto [bytes, hold, id] = std::move(arrival);
  const ChannelSpec& spec = channel.spec;
  if (!control_.ack(spec.from, slot_of(id), rank()).receive(generation_of(id))) {
    mark_corrupt(spec.from, "a message that is not there");
    return {};
  }
  const bool is_last = control_.all_beyond(SlotAck::published, spec.from, slot_of(id), generation_of(id), spec.to);
  if (is_last && control_.page(spec.from).wants_space.load(std::memory_order_seq_cst) != 0) {
    ring_later(spec.from, wake_for(channel.key));
  }
  auto self = std::static_pointer_cast<const ShmEndpoint>(shared_from_this());
  return {.message = Lease{bytes, std::make_shared<LeaseState>(std::move(self), channel.shared_from_this(), id)}};
}

void ShmEndpoint::drop(int from, const Arrival& arrival) {
  control_.ack(from, slot_of(arrival.id), rank()).drop(generation_of(arrival.id));
  wake_for_space(from, wake_all);
}

int ShmEndpoint::num_leased(ChannelState& channel, const ChannelState::Receiver& receiver) {
  int leased = 0;
  for (const std::uint32_t slot : in_flight_) {
    if (publications_[slot].channel.get() != &channel) continue;
    if (control_.ack(rank(), slot, receiver.rank).step(publications_[slot].generation) == SlotAck::received) ++leased;
  }
  return leased;
}

std::span<std::byte> ShmEndpoint::make_private(ChannelState& channel, Lease& lease) {
  expect_usable();
  const int from = channel.spec.from;
  const Mapping& data = *memory_.data[static_cast<std::size_t>(from)];
  const std::uint64_t begin = data.offset_of(lease.bytes.data());
  const bool is_shared = begin < data.size();
  const bool is_ours_alone = from == rank() && channel.spec.to.size() == 1 && !is_forwarded(lease.bytes);
  if (!is_shared || is_ours_alone) return {const_cast<std::byte*>(lease.bytes.data()), lease.bytes.size()};
  if (lease.bytes.size() < min_private_bytes || own_state(channel).writes_much) return {};
  PrivateViews::View view{from,
                          {begin, align_up(begin + lease.bytes.size(), page_bytes)},
                          std::static_pointer_cast<ShmChannelState>(channel.shared_from_this())};
  const auto writable = views_->open(view, data.size());
  if (writable.empty()) return {};
  auto self = std::static_pointer_cast<const ShmEndpoint>(shared_from_this());
  lease.hold = std::make_shared<PrivateLeaseState>(std::move(self), std::move(lease.hold), std::move(view));
  lease.bytes = writable.first(lease.bytes.size());
  return writable.first(lease.bytes.size());
}

bool ShmEndpoint::is_forwarded(ByteView bytes) const {
  const auto slot = pool_->slot_at(bytes.data());
  const std::lock_guard lock(mutex_);
  return slot && *slot < publications_.size() && publications_[*slot].hold != nullptr;
}

// ---- memory

std::optional<std::uint64_t> ShmEndpoint::position_of(ByteView bytes) const {
  return levada::position_of(pool_->memory(), bytes);
}

std::optional<ByteView> ShmEndpoint::view(int rank, std::uint64_t position, std::uint64_t bytes) const {
  return view_of(memory_.data[static_cast<std::size_t>(rank)]->memory(), position, bytes);
}

bool ShmEndpoint::keep_pages(ByteView bytes) const {
  for (int owner = 0; owner < size(); ++owner) {
    const ByteView memory = memory_.data[static_cast<std::size_t>(owner)]->memory();
    if (!levada::position_of(memory, bytes)) continue;
    // The owner sees this no later than the end of the lease that `bytes` belong to.
    control_.page(owner).keeps_pages.store(1, std::memory_order_seq_cst);
    return true;
  }
  return false;
}

void ShmEndpoint::reclaim() {
  std::erase_if(in_flight_, [&](std::uint32_t slot) {
    if (!is_returned_by_all(slot)) return false;
    LEVADA_ASSERT(publications_[slot].channel, "a block is in transit once");
    publications_[slot].channel.reset();
    if (publications_[slot].hold) {
      released_.push_back(std::move(publications_[slot].hold));
      has_pending_ = true;
    } else {
      pool_->free_block(slot);
    }
    return true;
  });
}

bool ShmEndpoint::is_returned_by_all(std::uint32_t slot) {
  const Publication& publication = publications_[slot];
  release_for_gone(*publication.channel, slot, publication.generation);
  return std::all_of(
      publication.channel->receivers.begin(), publication.channel->receivers.end(), [&](const auto& receiver) {
        return control_.ack(rank(), slot, receiver.rank).step(publication.generation) == SlotAck::returned;
      });
}

}  // namespace levada::shm
