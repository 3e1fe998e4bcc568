#include "levada/pipeline/cursors.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/tree/codec.h"

namespace levada::pipeline {
namespace {

[[noreturn]] void throw_state_mismatch(std::string_view stage, std::string_view what) {
  throw InvalidArgument(fmt::format("the state does not fit stage {}: {}", stage, what));
}

template <typename T>
const T* leaf_as(const Tree& tree) {
  return tree.is_leaf() ? std::get_if<T>(&tree.leaf()) : nullptr;
}

std::size_t bytes_in(const Cursor& cursor) {
  if (const auto* bytes = leaf_as<Bytes>(cursor)) return bytes->size();
  if (cursor.is_leaf()) return 0;
  std::size_t sum = 0;
  for (const Tree& child : cursor.container().children) sum += bytes_in(child);
  return sum;
}

}  // namespace

Bytes pack_cursor(const Cursor& cursor) {
  return encode_tree(cursor);
}

Cursor unpack_cursor(ByteView bytes) {
  SchemaCache schemas;
  const auto memory = std::make_shared<const Bytes>(bytes.begin(), bytes.end());
  return unflatten(read_message(*memory, memory, schemas).content);
}

std::int64_t position_in(const Cursor& cursor, std::int64_t size) {
  const auto* number = leaf_as<std::int64_t>(cursor);
  if (number == nullptr) throw InvalidArgument("the state lacks the number of the next item");
  if (*number >= 0 && *number <= size) return *number;
  throw InvalidArgument(fmt::format("the state is of item {} of {}", *number, size));
}

void throw_past_end(std::int64_t items, std::string_view where) {
  throw InvalidArgument(
      fmt::format("the state is of an item past the end: there are only {} items in {}; resume with the data that it "
                  "was saved with",
                  items, where));
}

CursorFields::CursorFields(const Tree& fields, std::string_view stage) : fields_(fields), stage_(stage) {
  if (fields.is_leaf() || fields.container().kind != ContainerKind::dict) fail("it lacks a dict for this stage");
  const auto* name = leaf_as<std::string>(at("stage"));
  if (name == nullptr) fail("its dict does not name a stage");
  if (*name != stage) fail(fmt::format("it was saved by a pipeline with stage {} in this position", *name));
}

const Tree* CursorFields::find(std::string_view name) const {
  const auto& container = fields_.container();
  for (std::size_t i = 0; i < container.keys.size(); ++i) {
    const auto* key = std::get_if<std::string>(&container.keys[i]);
    if (key != nullptr && *key == name) return &container.children[i];
  }
  return nullptr;
}

const Tree& CursorFields::at(std::string_view name) const {
  if (const auto* found = find(name)) return *found;
  fail(fmt::format("it has no {}", name));
}

std::int64_t CursorFields::integer(std::string_view name) const {
  if (const auto* value = leaf_as<std::int64_t>(at(name))) return *value;
  fail(fmt::format("its {} is not an integer", name));
}

std::int64_t CursorFields::count(std::string_view name) const {
  const auto value = integer(name);
  if (value < 0 || value > max_count) fail(fmt::format("its {} is {}", name, value));
  return value;
}

const Bytes& CursorFields::bytes(std::string_view name) const {
  if (const auto* value = leaf_as<Bytes>(at(name))) return *value;
  fail(fmt::format("its {} is not bytes", name));
}

void CursorFields::fail(std::string_view what) const {
  throw_state_mismatch(stage_, what);
}

const std::vector<Tree>& list_in_cursor(const Tree& tree, std::string_view stage) {
  if (tree.is_leaf() || tree.container().kind != ContainerKind::list) throw_state_mismatch(stage, "it is not a list");
  return tree.container().children;
}

Duration SnapshotLog::mark(std::int64_t position, const std::function<Cursor()>& save, Clock::time_point begin) {
  auto cursor = save();
  const std::lock_guard lock(mutex_);
  insert(position, std::move(cursor));
  const auto end = Clock::now();
  if (!is_fixed_ && marked_ != Clock::time_point::min()) space_marks(since_, begin - marked_, end - begin);
  since_ = 0;
  marked_ = end;
  return end - begin;
}

void SnapshotLog::add(std::int64_t position, Cursor cursor) {
  const std::lock_guard lock(mutex_);
  insert(position, std::move(cursor));
}

void SnapshotLog::clear() {
  const std::lock_guard lock(mutex_);
  marks_.clear();
}

void SnapshotLog::insert(std::int64_t position, Cursor cursor) {
  drop_old();
  const std::size_t bytes = bytes_in(cursor);
  const auto behind = std::ranges::upper_bound(marks_, position, {}, &Mark::position);
  marks_.insert(behind, {position, std::move(cursor), bytes});
  while (marks_.size() > max_cursors || (marks_.size() > 2 && sum_bytes() > max_bytes)) drop_every_other();
}

void SnapshotLog::drop_old() {
  const auto keep = keep_from_.load(std::memory_order_relaxed);
  while (marks_.size() > 1 && marks_[1].position <= keep) marks_.pop_front();
}

// Keeps the first and the last: nothing precedes the first, and future positions follow the last.
void SnapshotLog::drop_every_other() {
  std::deque<Mark> kept;
  for (std::size_t i = 0; i + 1 < marks_.size(); i += 2) kept.push_back(std::move(marks_[i]));
  kept.push_back(std::move(marks_.back()));
  marks_ = std::move(kept);
}

std::size_t SnapshotLog::sum_bytes() const {
  std::size_t sum = 0;
  for (const Mark& mark : marks_) sum += mark.bytes;
  return sum;
}

std::size_t SnapshotLog::bytes() const {
  const std::lock_guard lock(mutex_);
  return sum_bytes();
}

// A mark may cost a fraction of the time between two marks.
void SnapshotLog::space_marks(std::int64_t items, Duration since, Duration cost) {
  constexpr std::int64_t part = 100, longest = std::int64_t{1} << 20;
  const auto time_for_one = std::max<std::int64_t>(since.count() / std::max<std::int64_t>(items, 1), 1);
  const auto wanted = cost.count() * part / time_for_one;
  every_ = std::clamp<std::int64_t>(wanted, 1, std::min(every_ * 4, longest));
}

SnapshotLog::Point SnapshotLog::at(std::int64_t position) const {
  const std::lock_guard lock(mutex_);
  const auto behind = std::ranges::upper_bound(marks_, position, {}, &Mark::position);
  if (behind == marks_.begin()) throw InvalidArgument(fmt::format("position {} is no longer remembered", position));
  const auto& mark = *std::prev(behind);
  return {mark.cursor, position - mark.position};
}

}  // namespace levada::pipeline
