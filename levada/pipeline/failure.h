// What went wrong in a pipeline, and where.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "levada/base/bytes.h"
#include "levada/base/error.h"

namespace levada {

/// For the codec of fields.h.
constexpr ErrorKind last_of(ErrorKind) {
  return ErrorKind::engine;
}

}  // namespace levada

namespace levada::pipeline {

struct Failure {
  std::string stage;      ///< its name; empty where it was none, as in starting
  std::string process;    ///< "worker 1 (process 4242)", "the dispatching process (process 4241)"
  std::int64_t item = 0;  ///< how many the stage had been given before
  ErrorKind kind = ErrorKind::source;
  std::string message;    ///< what was thrown
  std::string traceback;  ///< of a language that has such; whole, ready to print
  Bytes exception;        ///< the exception itself as its language packs it; may be empty
  static auto fields(auto& self) {
    return std::tie(self.stage, self.process, self.item, self.kind, self.message, self.traceback, self.exception);
  }
  bool operator==(const Failure&) const = default;
};

/// "stage map, item 17, in worker 1 (process 4242): division by zero", then the traceback.
std::string describe(const Failure& failure);

/// Thrown where the failed item would have come. A function of a stage that knows more of its failure than a message,
/// such as a traceback, throws one with an empty `stage`: stage, process and item are then filled in.
class StageFailed : public Error {
 public:
  explicit StageFailed(Failure failure) : Error(failure.kind, describe(failure)), failure_(std::move(failure)) {}
  const Failure& failure() const noexcept { return failure_; }

 private:
  Failure failure_;
};

}  // namespace levada::pipeline
