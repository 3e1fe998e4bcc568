// Sums between threads of one process, as a wire that has some would make them. Only for tests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/engine/group_reducer.h"

namespace levada::p2p::test {

/// Where the ranks of one reducer lay what they give.
class Table {
 public:
  explicit Table(std::size_t ranks) : given_(ranks) {}

  std::size_t size() const { return given_.size(); }
  void give(std::size_t rank, std::span<const std::byte> pieces) { given_[rank] = pieces; }
  const std::byte* piece(std::size_t from, std::size_t to, std::size_t bytes) const {
    return given_[from].data() + to * bytes;
  }
  /// Waits until all ranks are here.
  void meet(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    const bool together = changed_.wait_until(lock, deadline.at(), [&] { return round_ != round || lost_; });
    if (!together) throw Timeout("a rank did not come to the table");
    if (round_ == round) throw EngineError("a rank at the table is gone");
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::span<const std::byte>> given_;
  std::size_t arrived_ = 0;
  int round_ = 0;
  bool lost_ = false;
};

/// Adds up from the last rank to the first one.
class TableReducer final : public GroupReducer {
 public:
  TableReducer(std::shared_ptr<Table> table, std::size_t rank) : table_(std::move(table)), rank_(rank) {}

  bool is_deterministic() const override { return true; }
  bool can_sum(DType dtype) const override { return dtype == dtypes::float32 || dtype == dtypes::int64; }
  void reduce_scatter(DType dtype, std::span<const std::byte> from, std::span<std::byte> to,
                      Deadline deadline) override {
    check_pieces(*this, dtype, static_cast<int>(table_->size()), from.size(), to.size());
    table_->give(rank_, from);
    table_->meet(deadline);
    if (dtype == dtypes::float32) sum<float>(to);
    else sum<std::int64_t>(to);
    table_->meet(deadline);
  }

 private:
  template <typename T>
  void sum(std::span<std::byte> to) const {
    for (std::size_t at = 0; at < to.size(); at += sizeof(T)) {
      T total{};
      for (std::size_t from = table_->size(); from-- > 0;) {
        T value;
        std::memcpy(&value, table_->piece(from, rank_, to.size()) + at, sizeof(T));  // not payload: a test's
        total += value;
      }
      std::memcpy(to.data() + at, &total, sizeof(T));  // not payload: a test's
    }
  }

  std::shared_ptr<Table> table_;
  std::size_t rank_;
};

/// All tables of a wire, by name. Any thread.
class Tables {
 public:
  std::shared_ptr<Table> find(const std::string& name, std::size_t ranks) {
    const std::lock_guard lock(mutex_);
    auto& table = tables_[name];
    if (!table) table = std::make_shared<Table>(ranks);
    return table;
  }
  void lose() {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, table] : tables_) table->lose();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Table>> tables_;
};

}  // namespace levada::p2p::test
