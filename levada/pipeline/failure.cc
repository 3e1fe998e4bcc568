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

bool can_skip(const std::exception& error) {
  const auto* failed = dynamic_cast<const StageFailed*>(&error);
  return failed == nullptr || !failed->failure().ends_program;
}

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StageFailed& failed) {
    return failed.failure();
  } catch (const Error& known) {
    return {.kind = known.kind(), .message = known.what()};
  } catch (const std::exception& other) {
    return {.message = other.what()};
  } catch (...) {
    return {.message = "an exception of unknown type"};
  }
}

}  // namespace levada::pipeline
