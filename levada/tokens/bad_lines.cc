#include "levada/tokens/bad_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "levada/base/text.h"
#include "levada/base/urls.h"

namespace levada {

void BadLines::add(std::int64_t number) {
  ++count;
  if (first.size() < max_first) first.push_back(number);
}

BadLines whole_text() {
  BadLines lines;
  lines.add(1);
  return lines;
}

void BadPlaces::add(std::string_view path, const BadLines& lines) {
  count += lines.count;
  for (const auto number : lines.first) {
    if (first.size() < BadLines::max_first) first.push_back(fmt::format("{}:{}", printable(shown_url(path)), number));
  }
}

void BadPlaces::add(const BadPlaces& others) {
  count += others.count;
  const auto room = BadLines::max_first - first.size();
  const auto end = others.first.begin() + static_cast<std::ptrdiff_t>(std::min(room, others.first.size()));
  first.insert(first.end(), others.first.begin(), end);
}

}  // namespace levada
