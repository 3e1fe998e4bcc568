#include "levada/tokens/bad_texts.h"

#include <fmt/format.h>

#include "levada/base/error.h"

namespace levada {

void BadTexts::add(std::size_t text, const std::string& what) {
  const std::lock_guard lock(mutex_);
  bad_.emplace(text, what);
}

void BadTexts::throw_if_any(std::size_t texts) const {
  const std::lock_guard lock(mutex_);
  if (bad_.empty()) return;
  if (bad_.size() == 1) throw SourceError(bad_.begin()->second);
  constexpr std::size_t max_named = 10;
  std::string all = fmt::format("{} of {} texts cannot be used:", bad_.size(), texts);
  for (std::size_t named = 0; const auto& [text, what] : bad_) {
    if (named++ < max_named) all += "\n  " + what;
  }
  if (bad_.size() > max_named) all += fmt::format("\n  and {} more", bad_.size() - max_named);
  throw SourceError(all);
}

}  // namespace levada
