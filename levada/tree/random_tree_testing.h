// Random trees of every kind, for property tests.
#pragma once

#include <array>
#include <bit>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "levada/tensor/dtypes_testing.h"
#include "levada/tree/tree.h"

namespace levada {

/// Generates random trees, which are the same for the same seed.
class RandomTrees {
 public:
  explicit RandomTrees(std::uint64_t seed) : random_(seed) {}

  Tree next() {
    tensors_.clear();
    return tree(0);
  }
  /// Returns a number below `bound`.
  std::size_t below(std::size_t bound) { return random_() % bound; }
  std::uint64_t bits() { return random_(); }

 private:
  static constexpr int max_depth = 6;

  Tree tree(int depth) {
    if (depth == max_depth || below(3) == 0) return Tree(leaf());
    Container container;
    container.kind = static_cast<ContainerKind>(1 + below(4));
    const auto count = below(5);
    const bool has_keys = container.kind == ContainerKind::dict || container.kind == ContainerKind::record;
    for (std::size_t i = 0; i < count; ++i) {
      if (has_keys) container.keys.push_back(key(container.kind, i));
      container.children.push_back(tree(depth + 1));
    }
    if (container.kind == ContainerKind::record || below(4) == 0) {
      container.type_name = "module:Class." + text();
      container.state = bytes();
    }
    return Tree(std::move(container));
  }

  // Returns a key that is distinct for each `number`. Some keys are unusual enough to need quotes in a path.
  Key key(ContainerKind kind, std::size_t number) {
    if (kind == ContainerKind::dict && below(3) == 0) return static_cast<std::int64_t>(bits());
    return text() + std::to_string(number);
  }

  std::string text() {
    static const std::array<std::string, 12> parts = {"a",  "Z",  "9", ".",  "[",          "]",
                                                      "\"", "\\", "é", "標", "\U0001F30A", "\n"};
    std::string made;
    for (auto count = below(6); count > 0; --count) made += parts[below(parts.size())];
    return made;
  }

  Bytes bytes() {
    Bytes made(below(20));
    for (auto& byte : made) byte = static_cast<std::byte>(bits());
    return made;
  }

  Leaf leaf() {
    switch (below(10)) {
      case 0: return None{};
      case 1: return below(2) == 1;
      case 2: return static_cast<std::int64_t>(bits());
      case 3: return std::bit_cast<double>(bits());
      case 4: return text();
      case 5: return bytes();
      case 6:
        if (!tensors_.empty()) return tensors_[below(tensors_.size())];
        [[fallthrough]];
      default: return tensors_.emplace_back(tensor());
    }
  }

  Tensor tensor() {
    auto dtype = all_dtypes[below(all_dtypes.size())];
    if (below(8) == 0) dtype.lanes = 4;
    Shape shape;
    for (auto rank = below(5); rank > 0; --rank)
      shape.push_back(static_cast<std::int64_t>(below(8) ? 1 + below(4) : 0));
    auto made = Tensor::empty(dtype, shape);
    for (auto& byte : made.mutable_bytes()) byte = static_cast<std::byte>(bits());
    return dtype.is_byte_sized() && below(2) ? strided(made) : made;
  }

  // Returns a view of the same memory with dimensions swapped, reversed, cut or repeated.
  Tensor strided(const Tensor& tensor) {
    const auto& view = tensor.view();
    if (view.element_count() == 0) return tensor;
    Shape shape = view.shape();
    Shape strides = view.strides();
    const auto* data = view.data();
    for (std::size_t dim = 0; dim < shape.rank(); ++dim) {
      const auto other = below(shape.rank());
      std::swap(shape[dim], shape[other]);
      std::swap(strides[dim], strides[other]);
      const auto item = static_cast<std::int64_t>(view.dtype().bytes(1));
      switch (below(4)) {
        case 0:
          data += (shape[dim] - 1) * strides[dim] * item;
          strides[dim] = -strides[dim];
          break;
        case 1: shape[dim] = (shape[dim] + 1) / 2; break;
        case 2: strides[dim] = 0; break;
        default: break;
      }
    }
    return Tensor(TensorView(view.dtype(), shape, strides, data), tensor.owner());
  }

  std::mt19937_64 random_;
  std::vector<Tensor> tensors_;
};

}  // namespace levada
