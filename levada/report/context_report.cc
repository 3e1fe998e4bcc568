#include "levada/report/context_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/plan/context_plan.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

using Json = nlohmann::ordered_json;

void add_to(std::optional<ContextReport::DivisionTotals>& sum, double time, std::size_t micro_batches) {
  if (!sum) return;
  sum->time += time;
  sum->micro_batches += static_cast<std::int64_t>(micro_batches);
}

}  // namespace

void ContextReport::add(const std::vector<SampleSize>& sizes) {
  std::vector<std::int64_t> lengths;
  for (const SampleSize& size : sizes) lengths.push_back(size.tokens);
  const auto context = context_balance_of(by);
  if (steps == 0) in_order = balanced = DivisionTotals();
  const auto fits = [&](std::int64_t each) { return padded_for(each, cp_size) <= by.max_tokens * cp_size; };
  holds_samples = holds_samples && std::ranges::all_of(lengths, fits);
  if (!holds_samples) in_order = balanced = std::nullopt;
  if (in_order) add_to(in_order, static_cast<double>(time_in_order(lengths, ranks, cp_size, context)), 0);
  if (balanced) {
    try {
      const auto plan = plan_static_context(lengths, ranks, cp_size, context);
      add_to(balanced, static_cast<double>(step_time(plan, lengths, context)), plan.micros.size());
    } catch (const InvalidArgument&) {
      balanced = std::nullopt;  // some block would have no sample
    }
  }
  const auto plan = plan_context(sizes, ranks, by);
  for (const auto& blocks : plan.micros) {
    for (const ContextBlock& block : blocks) {
      for (const auto sample : block.samples) tokens_by_size[block.size] += lengths[sample];
    }
  }
  const auto num_micro = static_cast<std::int64_t>(plan.micros.size());
  dynamic.time += static_cast<double>(step_time(plan, lengths, context));
  dynamic.micro_batches += num_micro;
  bound += static_cast<double>(context_bound(lengths, ranks, static_cast<int>(num_micro), context));
  ++steps;
  for (const auto each : lengths) {
    tokens += each;
    longest = std::max(longest, each);
  }
  samples += std::ssize(sizes);
}

double ContextReport::unit_seconds() const {
  constexpr double layers = 32, passes = 3, operations = 4, a_second = 400e12, linear_of_a_hidden_unit = 6;
  return layers * passes * operations * static_cast<double>(by.cost.linear) / linear_of_a_hidden_unit / a_second;
}

std::string ContextReport::to_json() const {
  const auto seconds = [&](double time) { return time * unit_seconds(); };
  const auto optional_seconds = [&](const std::optional<DivisionTotals>& totals) {
    return totals ? Json(seconds(totals->time)) : Json();
  };
  Json json = {{"by", to_string(by)},
               {"wait", to_string(by.wait)},
               {"ranks", ranks},
               {"steps", steps},
               {"samples", samples},
               {"tokens", tokens},
               {"longest", longest},
               {"cp", cp_size},
               {"in_order_s", optional_seconds(in_order)},
               {"balanced_s", optional_seconds(balanced)},
               {"balanced_micro_batches", balanced ? Json(balanced->micro_batches) : Json()},
               {"dynamic_s", seconds(dynamic.time)},
               {"dynamic_micro_batches", dynamic.micro_batches},
               {"bound_s", seconds(bound)},
               {"tokens_by_size", Json::object()}};
  for (const auto& [size, sum] : tokens_by_size) json["tokens_by_size"][std::to_string(size)] = sum;
  return json_text(json);
}

std::string ContextReport::to_table(const Style& style) const {
  if (steps == 0) return "no step to divide\n";
  TextTable table({"context parallelism", "step", "of the bound", "micro-batches"});
  const auto row = [&](const std::string& name, double time, std::int64_t micro_batches) {
    const auto a_step = static_cast<double>(steps);
    table.add({name, format_seconds(time / a_step * unit_seconds()), fmt::format("{:.3f}x", time / bound),
               micro_batches > 0 ? fmt::format("{:.1f}", static_cast<double>(micro_batches) / a_step) : ""});
  };
  if (in_order) row(fmt::format("cp={}, samples in their order", cp_size), in_order->time, 0);
  if (balanced) row(fmt::format("cp={}, balanced", cp_size), balanced->time, balanced->micro_batches);
  row(fmt::format("1 to {}, as each sequence needs", by.max_cp), dynamic.time, dynamic.micro_batches);
  row("the bound", bound, 0);
  auto text = report::to_string(table, {false, true, true, true}, style) + "\n";
  text += fmt::format("{} of {} samples and {} tokens, the longest of {}, over {} dp x cp ranks, by {}\n",
                      counted(steps, "step"), with_commas(samples / steps),
                      in_thousands(static_cast<double>(tokens / steps)), with_commas(longest), with_commas(ranks),
                      to_string(by));
  std::string shares;
  for (const auto& [size, sum] : tokens_by_size) {
    shares += fmt::format("{}{} on {}", shares.empty() ? "" : ", ",
                          format_share(static_cast<double>(sum) / static_cast<double>(tokens)), counted(size, "rank"));
  }
  text += fmt::format("tokens: {}\n", shares);
  text += "times of a model: 32 layers at 400 TFLOP/s a rank, 300 GB/s within a host of 8 ranks and 40 GB/s between\n";
  if (!balanced) {
    const auto reason =
        holds_samples ? std::string("cannot divide each step into micro-batches for all ranks")
                      : fmt::format("cannot hold these samples with {} tokens on a rank", with_commas(by.max_tokens));
    return text + fmt::format("cp={} {}: use max_cp={}\n", cp_size, reason, by.max_cp);
  }
  const double gain = balanced->time / dynamic.time;
  constexpr double worthwhile = 1.02;
  return text + (gain >= worthwhile
                     ? fmt::format("use max_cp={}: steps are {:.2f}x as fast as with cp={}, balanced\n", by.max_cp,
                                   gain, cp_size)
                     : fmt::format("stay with cp={}, balanced: max_cp={} gains {:.2f}x\n", cp_size, by.max_cp, gain));
}

}  // namespace levada::report
