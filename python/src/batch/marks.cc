#include "python/src/batch/marks.h"

#include <algorithm>

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

std::optional<char> Marks::of(std::size_t child) {
  if (next_ == state_.marks.size()) return std::nullopt;
  const auto from = state_.marks.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found = std::ranges::find(from, state_.marks.end(), step_of(container_, child), &Mark::first);
  if (found == state_.marks.end()) return std::nullopt;
  next_ = static_cast<std::size_t>(found - state_.marks.begin()) + 1;
  return found->second;
}

}  // namespace levada::python
