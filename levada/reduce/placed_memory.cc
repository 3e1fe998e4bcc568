#include "levada/reduce/placed_memory.h"

#include <utility>

namespace levada {

struct PlacedMemory::Placed {
  const Engine* group;
  std::size_t bytes;
  std::optional<Contribution> contribution;  ///< empty once it has been taken
};

Tensor PlacedMemory::give(const Engine& group, Contribution contribution, const Shape& shape, const Shape& piece) {
  const DType dtype = contribution.spec().dtype;
  std::byte* data = contribution.data(contribution.add(piece, 0));
  const TensorView view(dtype, shape, data);
  auto placed = std::make_shared<Placed>(Placed{&group, view.byte_count(), std::move(contribution)});
  std::erase_if(by_begin_, [](const auto& each) { return each.second.expired(); });
  // What was there before may still be held, used up.
  by_begin_.insert_or_assign(data, placed);
  return Tensor(view, std::shared_ptr<const void>(std::move(placed)), true);
}

std::optional<Contribution> PlacedMemory::take(const Engine& group, const Tensor& input, std::size_t bytes) {
  const auto found = by_begin_.find(input.view().data());
  if (found == by_begin_.end()) return std::nullopt;
  const auto placed = found->second.lock();
  if (!placed || !placed->contribution) return std::nullopt;
  const bool whole = placed->group == &group && input.view().is_contiguous() &&
                     input.view().byte_count() == placed->bytes && bytes == placed->bytes &&
                     input.dtype() == placed->contribution->spec().dtype;
  return whole ? std::exchange(placed->contribution, std::nullopt) : std::nullopt;
}

}  // namespace levada
