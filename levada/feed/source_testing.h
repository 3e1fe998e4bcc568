// A source for tests, in which every element encodes its sample and its position.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "levada/sources/source.h"

namespace levada::testing {

struct NumberedOptions {
  std::int64_t samples = 64;
  std::int64_t sequence = 8;
  bool known_size = true;
  bool in_memory_given = true;  ///< whether tensors are allocated from the feed's memory, or elsewhere
  /// Called before each read with the number of its first sample; may throw or wait.
  std::function<void(std::int64_t first)> before = [](std::int64_t) {};
  std::vector<std::pair<std::string, std::string>> identity = {};
};

/// The fields of a GPT step: token j of sample g is 1000g + j, labels one more, and so on.
class Numbered : public Source {
 public:
  explicit Numbered(NumberedOptions options) : options_(std::move(options)) {}

  std::optional<std::int64_t> size() const override {
    return options_.known_size || at_end_ ? std::optional(options_.samples) : std::nullopt;
  }

  std::optional<Tree> read(std::int64_t first, std::int64_t count, Memory& memory) override {
    options_.before(first);
    at_end_ = at_end_ || first + count > options_.samples;
    count = std::min(count, options_.samples - first);
    if (count <= 0) return std::nullopt;
    HeapMemory heap;
    return batch(first, count, options_.sequence, options_.in_memory_given ? memory : heap);
  }

  Bytes cursor(std::int64_t next) const override {
    ByteWriter writer;
    writer.put(next);
    return std::move(writer).take();
  }
  std::vector<std::pair<std::string, std::string>> identity() const override { return options_.identity; }
  std::string activity() const override { return "counting samples"; }
  ReadStats stats() const override { return {}; }

  static Tree batch(std::int64_t first, std::int64_t count, std::int64_t sequence, Memory& memory) {
    const auto field = [&](auto sample) {
      using T = decltype(sample(0, 0));
      Tensor tensor = memory.empty(dtype_of<T>(), {count, sequence});
      auto values = tensor.mutable_as<T>();
      for (std::int64_t i = 0; i < count * sequence; ++i) values[i] = sample(first + i / sequence, i % sequence);
      return Tree(std::move(tensor));
    };
    using I = std::int64_t;
    return Tree::dict({{"tokens", field([](I g, I j) -> I { return 1000 * g + j; })},
                       {"labels", field([](I g, I j) -> I { return 1000 * g + j + 1; })},
                       {"loss_mask", field([](I g, I j) -> float { return static_cast<float>(g * j % 2); })},
                       {"position_ids", field([](I, I j) -> I { return j; })}});
  }

 private:
  NumberedOptions options_;
  bool at_end_ = false;
};

}  // namespace levada::testing
