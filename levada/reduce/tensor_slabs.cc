#include "levada/reduce/tensor_slabs.h"

#include <algorithm>

namespace levada {

std::size_t TensorSlabs::slab_bytes(std::size_t first, std::uint64_t filled, std::uint64_t usual) const {
  return std::max<std::size_t>(first,
                               std::min<std::uint64_t>({Slab::message_bytes, capacity_, std::max(filled, usual)}));
}

std::shared_ptr<Slab> TensorSlabs::next(const Engine& group, DType dtype, std::size_t bytes, const FillLevel& filled,
                                        const std::function<std::shared_ptr<Slab>(std::size_t)>& make) {
  const auto make_slab = [&](std::size_t size) {
    auto slab = make(size);
    std::erase_if(slabs_, [](const auto& each) { return each.second.expired(); });
    slabs_.insert_or_assign(slab->data(), slab);
    return slab;
  };
  if (bytes > capacity_) return make_slab(bytes);
  const auto found = std::ranges::find_if(
      open_slabs_, [&](const OpenSlab& each) { return each.group == &group && each.dtype == dtype; });
  OpenSlab& open = found != open_slabs_.end() ? *found : open_slabs_.emplace_back(OpenSlab{&group, dtype});
  if (!open.slab || open.slab->is_all_entered()) open.bucket_bytes = filled.open;
  const bool fits_bucket = open.bucket_bytes + bytes <= capacity_;
  const std::uint64_t bucket_bytes = bytes + (fits_bucket ? open.bucket_bytes : 0);
  if (!fits_bucket || !open.slab || open.slab->is_sent() || !open.slab->has_room(bytes)) {
    open.slab = make_slab(slab_bytes(bytes, bucket_bytes, filled.usual));
  }
  open.bucket_bytes = bucket_bytes;
  return open.slab;
}

std::shared_ptr<Slab> TensorSlabs::find(const Engine& group, const TensorView& tensor) const {
  const auto after = slabs_.upper_bound(tensor.data());
  auto slab = after != slabs_.begin() ? std::prev(after)->second.lock() : nullptr;
  return slab && slab->is_next(group, tensor) ? slab : nullptr;
}

void TensorSlabs::leave(const Engine& group) {
  std::erase_if(open_slabs_, [&](const OpenSlab& each) { return each.group == &group; });
  // Existing tensors of the group are copied instead.
  std::erase_if(slabs_, [&](const auto& each) {
    const auto slab = each.second.lock();
    return !slab || slab->belongs_to(group);
  });
}

}  // namespace levada
