#include "levada/transfer/inbox.h"

namespace levada {
namespace {

/// A tensor so small is copied out of a message so large, lest a scalar that is kept hold all of it.
constexpr std::size_t small_tensor = std::size_t{64} << 10;
constexpr std::size_t large_message = std::size_t{1} << 20;

}  // namespace

Inbox::Inbox(std::shared_ptr<Engine> engine, std::shared_ptr<Channel> channel, Access access, int keep)
    : engine_(std::move(engine)), channel_(std::move(channel)), access_(access), keep_(keep) {}

std::shared_ptr<const void> Inbox::counted(std::shared_ptr<const void> hold) {
  held_->fetch_add(1, std::memory_order_relaxed);
  const void* that = hold.get();
  return {that, [hold = std::move(hold), held = held_](const void*) mutable {
            hold.reset();
            held->fetch_sub(1, std::memory_order_relaxed);
          }};
}

std::optional<Inbox::Arrival> Inbox::try_take() {
  auto lease = engine_->try_take(*channel_);
  if (!lease) return std::nullopt;
  const bool over_keep = held_->load(std::memory_order_relaxed) >= keep_;
  const bool copy_all = access_ == Access::copy || over_keep;
  const bool copy_small = lease->bytes.size() > large_message;

  Message message = read_message(lease->bytes, counted(std::move(lease->hold)), schemas_);
  Arrival arrival{.envelope = std::move(message.envelope), .copied = over_keep};
  const auto specs = message.content.schema.leaves();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto* tensor = std::get_if<Tensor>(&message.content.leaves[i]);
    if (tensor == nullptr) continue;
    arrival.tensor_bytes += tensor->view().byte_count();
    if (specs[i].alias_of >= 0) {
      *tensor = std::get<Tensor>(message.content.leaves[static_cast<std::size_t>(specs[i].alias_of)]);
    } else if (copy_all || (copy_small && tensor->view().byte_count() <= small_tensor)) {
      *tensor = Tensor::copy_of(*tensor);
    }
  }
  arrival.tree = unflatten(message.content);
  return arrival;
}

}  // namespace levada
