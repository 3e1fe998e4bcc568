// Rows of token ids or positions, in the integer width of the batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

namespace levada {

/// A span of int64 or int32 numbers; visit() resolves which.
class IdSpan {
 public:
  IdSpan() = default;
  IdSpan(std::span<std::int64_t> ids) : data_(ids.data()), size_(ids.size()) {}  // NOLINT(*-explicit-*)
  IdSpan(std::span<std::int32_t> ids)
      : data_(ids.data()), size_(ids.size()), is_narrow_(true) {}  // NOLINT(*-explicit-*)

  std::size_t size() const { return size_; }
  bool is_narrow() const { return is_narrow_; }

  /// Calls `of` with the typed std::span.
  template <typename Of>
  decltype(auto) visit(const Of& of) const {
    return is_narrow_ ? of(as<std::int32_t>()) : of(as<std::int64_t>());
  }
  /// `Id` must match is_narrow().
  template <typename Id>
  std::span<Id> as() const {
    return {static_cast<Id*>(data_), size_};
  }

  IdSpan subspan(std::size_t begin, std::size_t count) const {
    return visit([&](auto ids) { return IdSpan(ids.subspan(begin, count)); });
  }
  IdSpan subspan(std::size_t begin) const { return subspan(begin, size_ - begin); }

  void fill(std::int64_t id) const {
    visit([&](auto ids) { std::ranges::fill(ids, static_cast<typename decltype(ids)::value_type>(id)); });
  }
  /// Fills the span with 0, 1, 2, ...
  void count() const {
    visit([](auto ids) { std::iota(ids.begin(), ids.end(), 0); });
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  bool is_narrow_ = false;
};

}  // namespace levada
