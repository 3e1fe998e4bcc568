#include "levada/pipeline/overrun.h"

#include <fmt/format.h>

namespace levada::pipeline {

void Overrun::fail(bool exact) const {
  Failure failure = where_;
  failure.kind = ErrorKind::invalid_argument;
  failure.message = fmt::format(
      "what takes from both its branches waits for \"{}\", which is {} items ahead of \"{}\", and so for \"{}\" too; "
      "it takes a buffer of {}{}",
      ahead_, buffer_, behind_, behind_, exact ? "" : "more than ", lead_.load(std::memory_order_relaxed));
  throw StageFailed(std::move(failure));
}

}  // namespace levada::pipeline
