#include "levada/pipeline/failure.h"

#include <fmt/format.h>

namespace levada::pipeline {

std::string describe(const Failure& failure) {
  std::string text;
  if (!failure.stage.empty()) text = fmt::format("stage {}, item {}", failure.stage, failure.item);
  if (!failure.process.empty()) text += fmt::format("{}in {}", text.empty() ? "" : ", ", failure.process);
  text += fmt::format("{}{}", text.empty() ? "" : ": ", failure.message);
  if (!failure.traceback.empty()) text += "\n" + failure.traceback;
  return text;
}

}  // namespace levada::pipeline
