// First in, first out, in memory that is kept: a queue that is as long as it has been before does not allocate.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace levada::shm {

template <typename T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return items_[first_]; }
  const T& operator[](std::size_t i) const { return items_[(first_ + i) % items_.size()]; }

  void push(T item) {
    if (size_ == items_.size()) grow();
    items_[(first_ + size_++) % items_.size()] = std::move(item);
  }
  void pop() {
    first_ = (first_ + 1) % items_.size();
    --size_;
  }

 private:
  void grow() {
    std::vector<T> larger(items_.empty() ? 8 : 2 * items_.size());
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move(items_[(first_ + i) % items_.size()]);
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace levada::shm
