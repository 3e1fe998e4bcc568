#include "levada/base/fields.h"

#include <algorithm>
#include <limits>

namespace levada {
namespace {

/// The limit on the numbers of a run, so that an untrusted message cannot request unlimited memory.
constexpr std::uint32_t max_run = 1 << 20;

}  // namespace

void FieldWriter::put(const std::vector<std::int64_t>& numbers) {
  const auto is_gap = [](std::int64_t a, std::int64_t b) { return b != a + 1; };
  const bool is_run = !numbers.empty() && numbers.size() <= max_run &&
                      std::adjacent_find(numbers.begin(), numbers.end(), is_gap) == numbers.end();
  put(static_cast<std::uint32_t>(numbers.size()));
  put(is_run);
  if (is_run) return put(numbers.front());
  for (const auto number : numbers) put(number);
}

void FieldReader::get(std::vector<std::int64_t>& numbers) {
  const auto count = in_.get<std::uint32_t>();
  bool is_run = false;
  get(is_run);
  if (!is_run) {
    if (count > in_.remaining() / sizeof(std::int64_t)) in_.fail("more numbers than the remaining bytes hold");
    numbers.resize(count);
    for (auto& number : numbers) get(number);
    return;
  }
  std::int64_t first = 0;
  get(first);
  if (count > max_run || first > std::numeric_limits<std::int64_t>::max() - count)
    in_.fail("a run of numbers is out of range");
  numbers.resize(count);
  for (auto& number : numbers) number = first++;
}

}  // namespace levada
