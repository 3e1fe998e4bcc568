// The planner for bench/balance.py: reads the lengths of a step's samples, a step a line, and prints the plan of each
// step as a line of JSON, with the processor time that it took.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "levada/base/error.h"
#include "levada/plan/step_plan.h"

namespace levada {
namespace {

void plan(const std::string& line, int ranks, const Balance& options) {
  std::istringstream lengths(line);
  std::vector<SampleSize> samples;
  for (std::int64_t length = 0; lengths >> length;) {
    samples.push_back({.tokens = length, .squares = length * length});
  }
  const auto begin = std::clock();
  const auto plan = plan_step(samples, ranks, options);
  const auto seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << fmt::format("{{\"seconds\": {}, \"num_micro\": {}, \"micros\": {}}}\n", seconds, plan.num_micro,
                           plan.micros);
}

}  // namespace
}  // namespace levada

int main(int count, char** arguments) try {
  if (count != 5) {
    std::cerr << "usage: plan_steps COST RANKS any|equal MAX_TOKENS\n";
    return 2;
  }
  const levada::Balance options{
      .cost = levada::SampleCost::parse(arguments[1]),
      .sizes = std::string_view(arguments[3]) == "equal" ? levada::PartSizes::equal : levada::PartSizes::any,
      .max_tokens = std::atoll(arguments[4])};
  for (std::string line; std::getline(std::cin, line);) levada::plan(line, std::atoi(arguments[2]), options);
  return 0;
} catch (const levada::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
