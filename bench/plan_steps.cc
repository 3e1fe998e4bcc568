// The planner for bench/balance.py: reads the lengths of a step's samples, a step a line, and prints the plan of each
// step as a line of JSON, with the processor time that it took. `micro` allows any counts, for ranks that wait for each
// other in each micro-batch. With MAX_DELAY the lines are one stream of samples, and the output is one line that sums
// up its steps.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "levada/base/error.h"
#include "levada/plan/delay_queue.h"
#include "levada/plan/step_balance.h"
#include "levada/plan/step_plan.h"

namespace levada {
namespace {

std::vector<SampleSize> read(const std::string& line) {
  std::istringstream lengths(line);
  std::vector<SampleSize> samples;
  for (std::int64_t length = 0; lengths >> length;) {
    samples.push_back({.tokens = length, .squares = length * length});
  }
  return samples;
}

void plan_stream(std::istream& lines, int ranks, const Balance& options) {
  std::vector<SampleSize> stream;
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto step = read(line);
    count = step.size();
    stream.insert(stream.end(), step.begin(), step.end());
  }
  DelayQueue queue(ranks, options.cost, options.max_delay);
  StepBalance total;
  for (std::size_t at = 0; total.samples < std::ssize(stream);) {
    const auto next = std::span(stream).subspan(at, std::min(2 * count, stream.size() - at));
    const auto step = queue.choose(static_cast<std::int64_t>(at), next, static_cast<std::int64_t>(count));
    auto balance = balance_of(plan_step(step.sizes, ranks, options), step.sizes, options);
    balance.delayed = step.delayed;
    balance.waited = step.waited;
    balance.longest_wait = step.longest_wait;
    total += balance;
    at += static_cast<std::size_t>(step.taken);
  }
  std::cout << fmt::format(
      "{{\"busiest\": {}, \"mean\": {}, \"samples\": {}, \"delayed\": {}, \"waited\": {}, \"longest_wait\": {}}}\n",
      total.busiest, total.mean, total.samples, total.delayed, total.waited, total.longest_wait);
}

void plan(const std::string& line, int ranks, const Balance& options) {
  const auto samples = read(line);
  const auto begin = std::clock();
  const auto plan = plan_step(samples, ranks, options);
  const auto seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const auto balance = balance_of(plan, samples, options);
  std::cout << fmt::format(
      "{{\"seconds\": {}, \"num_micro\": {}, \"waiting\": {}, \"waiting_bound\": {}, \"micros\": {}}}\n", seconds,
      plan.num_micro, balance.waiting, balance.waiting_bound, plan.micros);
}

}  // namespace
}  // namespace levada

int main(int count, char** arguments) try {
  if (count != 5 && count != 6) {
    std::cerr << "usage: plan_steps COST RANKS any|equal|micro MAX_TOKENS [MAX_DELAY]\n";
    return 2;
  }
  const std::string_view how = arguments[3];
  const levada::Balance options{.cost = levada::SampleCost::parse(arguments[1]),
                                .sizes = how == "equal" ? levada::PartSizes::equal : levada::PartSizes::any,
                                .max_tokens = std::atoll(arguments[4]),
                                .wait = how == "micro" ? levada::Wait::micro : levada::Wait::step,
                                .max_delay = count == 6 ? std::atoll(arguments[5]) : 0};
  if (count == 6) {
    levada::plan_stream(std::cin, std::atoi(arguments[2]), options);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) levada::plan(line, std::atoi(arguments[2]), options);
  return 0;
} catch (const levada::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
