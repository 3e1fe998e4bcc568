#include "levada/tree/path.h"

#include <algorithm>
#include <charconv>

namespace levada {
namespace {

// Accepts only the form that std::to_string() writes, so that each integer has one name.
std::optional<std::int64_t> as_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || std::to_string(value) != text) return std::nullopt;
  return value;
}

bool needs_quotes(std::string_view name) {
  return name.empty() || name.find_first_of(".[]\"\\") != std::string_view::npos || as_integer(name).has_value();
}

void append_quoted(std::string& path, std::string_view name) {
  path += '"';
  for (const char c : name) {
    if (c == '"' || c == '\\') path += '\\';
    path += c;
  }
  path += '"';
}

}  // namespace

void append_key(std::string& path, const Key& key) {
  if (!path.empty()) path += '.';
  if (const auto* number = std::get_if<std::int64_t>(&key)) path += std::to_string(*number);
  else if (const auto& name = std::get<std::string>(key); needs_quotes(name)) append_quoted(path, name);
  else path += name;
}

void append_position(std::string& path, std::size_t position) {
  path += '[';
  path += std::to_string(position);
  path += ']';
}

std::optional<PathStep> PathReader::next() {
  if (path_[at_] == '[') return position();
  if (at_ > 0) {
    if (path_[at_] != '.') return std::nullopt;
    ++at_;
  }
  if (at_ < path_.size() && path_[at_] == '"') return quoted();
  const auto end = std::min(path_.find_first_of(".[]\"", at_), path_.size());
  const auto text = path_.substr(at_, end - at_);
  at_ = end;
  if (text.empty()) return std::nullopt;
  return PathStep{std::string(text), as_integer(text), false};
}

std::optional<PathStep> PathReader::position() {
  const auto end = path_.find(']', at_);
  if (end == std::string_view::npos) return std::nullopt;
  const auto text = path_.substr(at_ + 1, end - at_ - 1);
  at_ = end + 1;
  const auto number = as_integer(text);
  if (!number || *number < 0) return std::nullopt;
  return PathStep{std::string(text), number, true};
}

std::optional<PathStep> PathReader::quoted() {
  PathStep step;
  for (++at_; at_ < path_.size(); ++at_) {
    if (path_[at_] == '"') {
      ++at_;
      return step;
    }
    if (path_[at_] == '\\' && ++at_ == path_.size()) break;
    step.text += path_[at_];
  }
  return std::nullopt;
}

}  // namespace levada
