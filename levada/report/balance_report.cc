#include "levada/report/balance_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/json.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

using Json = nlohmann::ordered_json;

double ratio(double value, double by) {
  return by > 0 ? value / by : 1;
}

Json to_object(const StepBalance& balance) {
  return {{"steps", balance.steps},
          {"samples", balance.samples},
          {"tokens", balance.tokens},
          {"padding", balance.padding},
          {"micro_batches", balance.micro_batches},
          {"busiest", balance.busiest},
          {"busiest_unbalanced", balance.unbalanced},
          {"bound", balance.bound},
          {"waiting", balance.waiting},
          {"waiting_bound", balance.waiting_bound},
          {"mean", balance.mean},
          {"delayed", balance.delayed},
          {"waited_steps", balance.waited},
          {"longest_wait", balance.longest_wait}};
}

double a_step(std::int64_t count, const StepBalance& balance) {
  return ratio(static_cast<double>(count), static_cast<double>(balance.steps));
}

std::string padding_share(const StepBalance& balance) {
  return format_share(ratio(static_cast<double>(balance.padding), static_cast<double>(balance.tokens)));
}

std::string waits(const StepBalance& total) {
  const auto mean =
      ratio(static_cast<double>(total.waited), static_cast<double>(std::max<std::int64_t>(total.delayed, 1)));
  return fmt::format("{} waited {:.1f} steps on average, at most {}", counted(total.delayed, "sample"), mean,
                     total.longest_wait);
}

}  // namespace

double BalanceReport::busiest() const {
  const auto total = series.total();
  return ratio(total.busiest, total.bound);
}

double BalanceReport::unbalanced() const {
  const auto total = series.total();
  return ratio(total.unbalanced, total.bound);
}

double BalanceReport::waiting() const {
  const auto total = series.total();
  return ratio(total.waiting, total.waiting_bound);
}

double BalanceReport::unused() const {
  const auto total = series.total();
  const auto room = static_cast<double>(total.micro_batches) * ranks * static_cast<double>(by.max_tokens);
  return room > 0 ? 1 - static_cast<double>(total.tokens) / room : 0;
}

std::string BalanceReport::to_json() const {
  auto json = to_object(series.total());
  json["by"] = to_string(by);
  json["wait"] = to_string(by.wait);
  json["ranks"] = ranks;
  json["unused_share"] = unused();
  json["series"] = Json::array();
  for (const auto& entry : series.entries()) json["series"].push_back(to_object(entry));
  return json_text(json);
}

std::string BalanceReport::to_text() const {
  if (series.total().steps == 0) return "no step to balance";
  auto text = fmt::format("the busiest rank has {:.3f}x the minimum possible work, unbalanced {:.3f}x; by {}",
                          busiest(), unbalanced(), to_string(by));
  if (by.wait == Wait::micro) {
    text = fmt::format("ranks that wait in each micro-batch take {:.3f}x the minimum possible time; by {}", waiting(),
                       to_string(by));
  }
  const auto total = series.total();
  if (total.padding > 0) text += fmt::format("; {} of the tokens are padding", padding_share(total));
  if (by.max_tokens > 0) {
    text += fmt::format("; {:.1f} micro-batches per step, {} of their tokens unused",
                        a_step(total.micro_batches, total), format_share(unused()));
  }
  if (by.max_delay > 0) text += "; " + waits(total);
  return text;
}

std::string BalanceReport::to_table(const Style& style) const {
  const auto total = series.total();
  if (total.steps == 0) return "no step to balance\n";
  TextTable table({"samples", "busiest rank", "of the bound", "of the mean"});
  const auto row = [&](const std::string& name, double work) {
    table.add({name, fmt::format("{:.4g}", ratio(work, static_cast<double>(total.steps))),
               fmt::format("{:.3f}x", ratio(work, total.bound)), fmt::format("{:.3f}x", ratio(work, total.mean))});
  };
  row("in their order", total.unbalanced);
  row("balanced", total.busiest);
  row("the bound", total.bound);
  auto text = report::to_string(table, {false, true, true, true}, style) + "\n";
  text +=
      fmt::format("{} of {:.6g} samples and {} tokens, {} of them padding, over {}, by {}\n",
                  counted(total.steps, "step"), a_step(total.samples, total), in_thousands(a_step(total.tokens, total)),
                  padding_share(total), counted(ranks, "data-parallel rank"), to_string(by));
  if (by.max_tokens > 0) {
    text += fmt::format("{:.1f} micro-batches per step on each rank; {} of their tokens unused\n",
                        a_step(total.micro_batches, total), format_share(unused()));
    text += fmt::format(
        "if ranks wait in each micro-batch, a step takes {:.4g}: {:.3f}x of its bound, {:.3f}x of the mean\n",
        ratio(total.waiting, static_cast<double>(total.steps)), waiting(), ratio(total.waiting, total.mean));
  }
  if (by.max_delay > 0) text += waits(total) + "\n";
  if (total.busiest > 0) {
    text += fmt::format(
        "a step takes {:.2f}x less time than with samples in their order, if its time depends only on work\n",
        total.unbalanced / total.busiest);
  }
  return text;
}

}  // namespace levada::report
