#include "levada/base/metric.h"

#include <fmt/format.h>

#include <set>

namespace levada {
namespace {

/// Returns a label's value, escaped as the format requires.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char character : text) {
    if (character == '\n') {
      result += "\\n";
      continue;
    }
    if (character == '\\' || character == '"') result += '\\';
    result += character;
  }
  return result;
}

}  // namespace

std::string Metric::id() const {
  std::string listed;
  for (const auto& [label, text] : labels) {
    listed += fmt::format("{}{}=\"{}\"", listed.empty() ? "" : ",", label, escaped(text));
  }
  return listed.empty() ? std::string(name) : fmt::format("{}{{{}}}", name, listed);
}

std::string to_prometheus(std::span<const Metric> metrics) {
  std::string text;
  std::set<std::string_view> written;
  for (const Metric& first : metrics) {
    if (!written.insert(first.name).second) continue;
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", first.name, first.help, first.name,
                        first.type == Metric::Type::counter ? "counter" : "gauge");
    for (const Metric& each : metrics) {
      if (each.name == first.name) text += fmt::format("{} {}\n", each.id(), each.value);
    }
  }
  return text;
}

}  // namespace levada
