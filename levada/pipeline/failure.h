// Failures of a pipeline's stages.
#pragma once

#include <cstdint>
#include <exception>
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
  std::string stage;      ///< the stage's name; empty if no stage failed, such as while starting
  std::string process;    ///< "worker 1 (process 4242)", "the dispatching process (process 4241)"
  std::int64_t item = 0;  ///< number of items that the stage had received before
  ErrorKind kind = ErrorKind::source;
  std::string message;        ///< message of the exception
  std::string traceback;      ///< if the language has tracebacks; complete, ready to print
  Bytes exception;            ///< the exception as packed by its language; may be empty
  bool ends_program = false;  ///< an exception such as Ctrl-C, which OnError::skip does not skip
  static auto fields(auto& self) {
    return std::tie(self.stage, self.process, self.item, self.kind, self.message, self.traceback, self.exception,
                    self.ends_program);
  }
  bool operator==(const Failure&) const = default;
};

/// Returns "stage map, item 17, in worker 1 (process 4242): division by zero", followed by the traceback.
std::string describe(const Failure& failure);

/// Thrown instead of the failed item. A stage's function that has more to report than a message, such as a traceback,
/// throws one with an empty `stage`; the pipeline then fills in stage, process and item.
class StageFailed : public Error {
 public:
  explicit StageFailed(Failure failure) : Error(failure.kind, describe(failure)), failure_(std::move(failure)) {}
  const Failure& failure() const noexcept { return failure_; }

 private:
  Failure failure_;
};

/// Returns whether OnError::skip may skip the item whose function threw the exception.
bool can_skip(const std::exception& error);

/// Converts any exception to a failure. Only a StageFailed has a stage, process and item.
Failure failure_of(const std::exception_ptr& error);

}  // namespace levada::pipeline
