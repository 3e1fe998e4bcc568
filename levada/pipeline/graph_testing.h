// Graphs for tests: sources that count, and functions that do nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "levada/base/error.h"
#include "levada/pipeline/graph.h"

namespace levada::pipeline::testing {

/// Yields the numbers from 0 to count - 1.
class Numbers final : public ItemSource {
 public:
  explicit Numbers(std::int64_t count, bool can_divide = false) : count_(count), can_divide_(can_divide) {}

  std::string describe() const override { return "numbers"; }
  bool divides() const override { return can_divide_; }
  IteratorPtr open(const OpenContext&, Partition partition) const override {
    return std::make_unique<Items>(count_, can_divide_ ? partition : Partition{});
  }

 private:
  class Items final : public Iterator {
   public:
    Items(std::int64_t count, Partition partition) : next_(partition.index), step_(partition.count), count_(count) {}
    std::optional<Item> next() override {
      if (next_ >= count_) return std::nullopt;
      return Tree(std::exchange(next_, next_ + step_));
    }
    Cursor save() const override { return Tree(next_); }
    void restore(const Cursor& cursor) override {
      const auto* next = cursor.is_leaf() ? std::get_if<std::int64_t>(&cursor.leaf()) : nullptr;
      if (next == nullptr || *next < 0) throw InvalidArgument("this is no cursor of numbers");
      next_ = *next;
    }

   private:
    std::int64_t next_, step_, count_;
  };

  std::int64_t count_;
  bool can_divide_;
};

inline Graph numbers(std::int64_t count = 10, std::string name = {}, bool can_divide = false) {
  return Graph::source(std::make_shared<Numbers>(count, can_divide), std::move(name));
}
inline Map same() {
  return {.function = [](Item item) { return item; }};
}
inline Map on_threads(OnError on_error = OnError::raise) {
  return {.function = [](Item item) { return item; }, .on_error = on_error, .threads = 2};
}
inline Filter all() {
  return {.predicate = [](const Item&) { return true; }};
}
inline FlatMap once() {
  return {.function = [](Item item) -> IteratorPtr {
    class Once final : public Iterator {
     public:
      explicit Once(Item item) : item_(std::move(item)) {}
      std::optional<Item> next() override { return std::exchange(item_, std::nullopt); }
      Cursor save() const override { return Tree(item_ ? 0 : 1); }
      void restore(const Cursor& cursor) override {
        if (cursor == Tree(1)) item_.reset();
      }

     private:
      std::optional<Item> item_;
    };
    return std::make_unique<Once>(std::move(item));
  }};
}

}  // namespace levada::pipeline::testing
