#include "levada/pipeline/collate.h"

#include <fmt/format.h>

#include <array>

#include "levada/base/error.h"
#include "levada/base/overloaded.h"
#include "levada/tree/path.h"

namespace levada::pipeline {
namespace {

/// The corresponding node of each sample.
using Nodes = std::vector<const Tree*>;

std::string describe(const Leaf& leaf) {
  return std::visit(
      Overloaded{
          [](None) { return std::string("None"); }, [](bool) { return std::string("a boolean"); },
          [](std::int64_t) { return std::string("an integer"); }, [](double) { return std::string("a float"); },
          [](const std::string&) { return std::string("a string"); }, [](const Bytes&) { return std::string("bytes"); },
          [](const Tensor& tensor) { return fmt::format("{} {}", tensor.dtype().name(), tensor.shape().to_string()); }},
      leaf);
}

std::string describe(const Tree& node) {
  if (node.is_leaf()) return describe(node.leaf());
  constexpr std::array<std::string_view, 5> kinds = {"", "list", "tuple", "dict", "record"};
  const Container& container = node.container();
  const auto kind = kinds[static_cast<std::size_t>(container.kind)];
  return fmt::format("a {} {}of {}", kind, container.type_name.empty() ? "" : container.type_name + " ",
                     container.children.size());
}

bool alike(const Leaf& a, const Leaf& b) {
  if (a.index() != b.index()) return false;
  const auto* tensor = std::get_if<Tensor>(&a);
  const auto* other = std::get_if<Tensor>(&b);
  return tensor == nullptr || (tensor->dtype() == other->dtype() && tensor->shape() == other->shape());
}

bool alike(const Tree& a, const Tree& b) {
  if (a.is_leaf() != b.is_leaf()) return false;
  if (a.is_leaf()) return alike(a.leaf(), b.leaf());
  const Container& one = a.container();
  const Container& other = b.container();
  return one.kind == other.kind && one.type_name == other.type_name && one.keys == other.keys &&
         one.children.size() == other.children.size() && one.state == other.state;
}

Shape shape_of_batch(const Tensor& sample, std::size_t samples) {
  Shape shape{static_cast<std::int64_t>(samples)};
  for (const std::int64_t extent : sample.shape()) shape.push_back(extent);
  return shape;
}

class Collating {
 public:
  Collating(std::int64_t first, Memory& memory) : first_(first), memory_(memory) {}

  Tree run(const Nodes& nodes) {
    memory_.reserve(bytes_of(*nodes.front(), nodes.size()));
    return batch_of(nodes);
  }

 private:
  std::size_t bytes_of(const Tree& sample, std::size_t samples) const {
    constexpr std::size_t field_alignment = 64, number = 8;
    if (sample.is_leaf()) {
      const auto* tensor = std::get_if<Tensor>(&sample.leaf());
      const std::size_t bytes = tensor != nullptr ? tensor->view().byte_count() : number;
      return align_up(bytes * samples, field_alignment);
    }
    std::size_t bytes = 0;
    for (const Tree& child : sample.container().children) bytes += bytes_of(child, samples);
    return bytes;
  }

  Tree batch_of(const Nodes& nodes) {
    const Tree& model = *nodes.front();
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      if (alike(model, *nodes[i])) continue;
      throw SourceError(
          fmt::format("sample {}: {} is {}, but in sample {} it is {}; all samples of a batch must be alike: map "
                      "them to one form",
                      first_ + static_cast<std::int64_t>(i), place(), describe(*nodes[i]), first_, describe(model)));
    }
    return model.is_leaf() ? batch_of_leaves(nodes) : batch_of_containers(nodes);
  }

  Tree batch_of_containers(const Nodes& nodes) {
    Container batch = nodes.front()->container();
    for (std::size_t child = 0; child < batch.children.size(); ++child) {
      const std::size_t length = path_.size();
      if (batch.keys.empty()) append_position(path_, child);
      else append_key(path_, batch.keys[child]);
      Nodes children;
      for (const Tree* node : nodes) children.push_back(&node->container().children[child]);
      batch.children[child] = batch_of(children);
      path_.resize(length);
    }
    return Tree(std::move(batch));
  }

  Tree batch_of_leaves(const Nodes& nodes) {
    return std::visit(
        Overloaded{[](None) { return Tree(); }, [&](const Tensor& model) { return batch_of_tensors(nodes, model); },
                   [&](bool) { return batch_of_numbers<bool>(nodes); },
                   [&](std::int64_t) { return batch_of_numbers<std::int64_t>(nodes); },
                   [&](double) { return batch_of_numbers<double>(nodes); },
                   [&](const auto&) { return list_of(nodes); }},
        nodes.front()->leaf());
  }

  Tree batch_of_tensors(const Nodes& nodes, const Tensor& model) {
    const std::size_t bytes = model.view().byte_count();
    if (!model.dtype().is_byte_sized()) {
      throw Unsupported(fmt::format("{} is {}, which cannot be stacked", place(), describe(Leaf(model))));
    }
    if (model.shape().rank() == Shape::max_rank) {
      throw Unsupported(
          fmt::format("{} is {}, which has too many dimensions to be stacked", place(), describe(Leaf(model))));
    }
    Tensor batch = memory_.empty(model.dtype(), shape_of_batch(model, nodes.size()));
    std::byte* to = batch.mutable_bytes().data();
    for (const Tree* node : nodes) {
      copy_elements(std::get<Tensor>(node->leaf()), to);
      to += bytes;
    }
    return Tree(std::move(batch));
  }

  template <typename T>
  Tree batch_of_numbers(const Nodes& nodes) {
    Tensor batch = memory_.empty(dtype_of<T>(), {static_cast<std::int64_t>(nodes.size())});
    const auto values = batch.mutable_as<T>();
    for (std::size_t i = 0; i < nodes.size(); ++i) values[i] = std::get<T>(nodes[i]->leaf());
    return Tree(std::move(batch));
  }

  static Tree list_of(const Nodes& nodes) {
    std::vector<Tree> values;
    for (const Tree* node : nodes) values.push_back(*node);
    return Tree::list(std::move(values));
  }

  std::string place() const { return path_.empty() ? "it" : fmt::format("\"{}\"", path_); }

  std::int64_t first_;
  Memory& memory_;
  std::string path_;
};

}  // namespace

Tree collate(std::span<const Tree> samples, std::int64_t first, Memory& memory) {
  if (samples.empty()) throw InvalidArgument("a batch needs at least one sample");
  Nodes nodes;
  for (const Tree& sample : samples) nodes.push_back(&sample);
  return Collating(first, memory).run(nodes);
}

Tensor only_row(const Tensor& rows) {
  const auto& view = rows.view();
  const std::span<const std::int64_t> extents(view.shape().begin() + 1, view.shape().end());
  const std::span<const std::int64_t> strides(view.strides().begin() + 1, view.strides().end());
  return {TensorView(view.dtype(), Shape(extents), Shape(strides), view.data(), view.device()), rows.owner(),
          rows.is_writable()};
}

}  // namespace levada::pipeline
