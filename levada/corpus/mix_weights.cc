#include "levada/corpus/mix_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/order/mix.h"

namespace levada {
namespace {

constexpr std::string_view name_of_first = "weights", name_of_change = "weights from sample ";

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void fail(const std::string& text) {
  throw CorruptMessage(0, fmt::format("the cursor has invalid weights: {}", printable(text)));
}

MixWeights parse(const std::string& text) {
  MixWeights parsed;
  std::string_view rest = text;
  const auto next = [&rest] {
    const auto word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    return word;
  };
  auto word = next();
  for (; !word.empty() && word != "by"; word = next()) {
    const auto weight = number_in<double>(word);
    if (!weight || !std::isfinite(*weight) || *weight <= 0) fail(text);
    parsed.weights.push_back(*weight);
  }
  if (const auto by = next(); by == "tokens") {
    parsed.by = CorpusMix::By::tokens;
  } else if (by != "samples") {
    fail(text);
  }
  if (rest != fmt::format("(mix {})", Mix::version)) {
    throw Unsupported(fmt::format("the cursor's sources were mixed in another way, {}; this build mixes as (mix {})",
                                  printable(rest), Mix::version));
  }
  return parsed;
}

}  // namespace

std::string to_string(const MixWeights& weights) {
  return fmt::format("{} by {} (mix {})", fmt::join(weights.weights, " "),
                     weights.by == CorpusMix::By::tokens ? "tokens" : "samples", Mix::version);
}

void add_weights(const WeightHistory& history, Order& order) {
  for (const auto& [first, weights] : history) {
    auto name = first == 0 ? std::string(name_of_first) : fmt::format("{}{}", name_of_change, first);
    order.emplace_back(std::move(name), to_string(weights));
  }
}

WeightHistory weights_in(const Order& order) {
  WeightHistory history;
  for (const auto& [name, value] : order) {
    const bool is_first = name == name_of_first;
    if (!is_first && !name.starts_with(name_of_change)) continue;
    const auto first = is_first ? 0 : number_in<std::int64_t>(std::string_view(name).substr(name_of_change.size()));
    if (!first || is_first != history.empty() || (!is_first && *first <= history.back().first)) fail(name);
    history.push_back({*first, parse(value)});
    if (history.back().weights.weights.size() != history.front().weights.weights.size()) fail(value);
  }
  return history;
}

}  // namespace levada
