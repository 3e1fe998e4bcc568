#include "python/src/batch/marks.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "levada/base/bytes.h"
#include "levada/tree/path.h"

namespace levada::python {

Bytes State::encode() const {
  if (marks.empty() && extra.empty()) return {};
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(marks.size()));
  for (const auto& [step, mark] : marks) {
    writer.put_sized(std::string_view(step));
    writer.put(mark);
  }
  writer.put_sized(ByteView(extra));
  return std::move(writer).take();
}

State State::decode(ByteView bytes) {
  State state;
  if (bytes.empty()) return state;
  ByteReader reader(bytes);
  for (auto count = reader.get_count(5); count > 0; --count) {
    auto step = reader.get_string();
    state.marks.emplace_back(std::move(step), reader.get<char>());
  }
  const auto extra = reader.get_sized();
  state.extra.assign(extra.begin(), extra.end());
  reader.expect_end();
  return state;
}

Bytes Plain::encode() const {
  ByteWriter writer;
  writer.put_sized(std::string_view(type_name));
  writer.put_sized(ByteView(message));
  return std::move(writer).take();
}

Plain Plain::decode(ByteView bytes) {
  ByteReader reader(bytes);
  Plain value{.type_name = reader.get_string(), .message = reader.get_bytes()};
  reader.expect_end();
  return value;
}

std::string step_of(const Container& container, std::size_t child) {
  std::string step;
  if (container.keys.empty()) append_position(step, child);
  else append_key(step, container.keys[child]);
  return step;
}

Marks::Marks(const Container& container)
    : container_(container), state_(State::decode(container.state)), by_step_(state_.marks.size()) {
  std::iota(by_step_.begin(), by_step_.end(), std::size_t{0});
  std::ranges::stable_sort(by_step_, {}, [&](std::size_t at) -> const std::string& { return state_.marks[at].first; });
}

std::optional<char> Marks::of(std::size_t child) {
  if (next_ == state_.marks.size()) return std::nullopt;
  const std::string step = step_of(container_, child);
  const auto is_before = [&](std::size_t at, const std::string& searched) {
    return std::tie(state_.marks[at].first, at) < std::tie(searched, next_);
  };
  const auto found = std::lower_bound(by_step_.begin(), by_step_.end(), step, is_before);
  if (found == by_step_.end() || state_.marks[*found].first != step) return std::nullopt;
  next_ = *found + 1;
  return state_.marks[*found].second;
}

}  // namespace levada::python
