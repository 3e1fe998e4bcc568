#include "levada/transfer/inbox.h"

#include "levada/base/enum_names.h"

namespace levada {
namespace {

constexpr EnumName<Access> access_names[] = {
    {"read_only", Access::read_only}, {"copy", Access::copy}, {"private", Access::private_}};

/// Tensors of up to small_tensor bytes are copied out of messages larger than large_message, so that keeping a scalar
/// does not keep the whole message.
constexpr std::size_t small_tensor = std::size_t{64} << 10;
constexpr std::size_t large_message = std::size_t{1} << 20;

}  // namespace

std::string_view to_string(Access access) {
  return enum_name(access, access_names);
}

Access parse_access(std::string_view word, std::string_view what) {
  return parse_enum(what, word, access_names);
}

std::shared_ptr<const void> Inbox::counted(std::shared_ptr<const void> hold) {
  held_->fetch_add(1, std::memory_order_relaxed);
  const void* that = hold.get();
  return {that, [hold = std::move(hold), held = held_](const void*) mutable {
            hold.reset();
            held->fetch_sub(1, std::memory_order_relaxed);
          }};
}

Tensor Inbox::copy_of(const TensorView& tensor) {
  BufferPool::Buffer buffer = copies_.allocate(tensor.byte_count());
  copy_elements(tensor, buffer.data);
  return Tensor(TensorView(tensor.dtype(), tensor.shape(), buffer.data), std::move(buffer.owner), true);
}

std::optional<Inbox::Arrival> Inbox::try_receive() {
  auto given = engine_->try_receive(*channel_);
  ended_ = given.ended;
  auto& lease = given.message;
  if (!lease) return std::nullopt;
  const auto there = Clock::now();
  const std::byte* const received = lease->bytes.data();
  Message message = read_message(lease->bytes, nullptr, schemas_);

  const bool over_keep = held_->load(std::memory_order_relaxed) >= keep_;
  const Access access = over_keep ? Access::copy : access_;
  const bool writable = access == Access::private_ && !engine_->make_private(*channel_, *lease).empty();
  const bool copies = access == Access::copy || (access == Access::private_ && !writable);
  if (lease->bytes.size() > largest_) {
    largest_ = lease->bytes.size();
    copies_.limit_cache(2 * largest_);  // releases buffers that a caller once hoarded
  }
  const auto hold = counted(std::move(lease->hold));
  // Returns a view at the current address of the tensor, which the lease keeps alive.
  const auto as_view = [&](const TensorView& tensor) {
    const std::byte* const data = lease->bytes.data() + (tensor.data() - received);
    return Tensor(TensorView(tensor.dtype(), tensor.shape(), tensor.strides(), data), hold, writable);
  };
  const std::size_t copied_size = lease->bytes.size() > large_message ? small_tensor : 0;

  Arrival arrival{.envelope = std::move(message.envelope), .copied = over_keep, .there = there};
  const auto specs = message.content.schema.leaves();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto* tensor = std::get_if<Tensor>(&message.content.leaves[i]);
    if (tensor == nullptr) continue;
    const std::size_t bytes = tensor->view().byte_count();
    arrival.tensor_bytes += bytes;
    if (specs[i].alias_of >= 0) {
      *tensor = std::get<Tensor>(message.content.leaves[static_cast<std::size_t>(specs[i].alias_of)]);
    } else {
      *tensor = copies || bytes <= copied_size ? copy_of(*tensor) : as_view(*tensor);
    }
  }
  arrival.content = std::move(message.content);
  return arrival;
}

}  // namespace levada
