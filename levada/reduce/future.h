// A collective's results, which are still to come.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "levada/base/deadline.h"

namespace levada {

/// One result for each input, all in one memory. The launcher of the collective knows their types and shapes.
struct Results {
  std::vector<std::byte*> data;
  std::shared_ptr<const void> owner = {};
};

/// Any thread may call.
class Future {
 public:
  /// Returns whether the collective has ended, with results or with an exception.
  bool done() const;
  /// Waits for the end. Returns false if it has not come by the deadline.
  bool wait(Deadline deadline) const;
  /// Waits for the end and returns the results. Throws the collective's exception.
  const Results& results() const;

  /// Called once.
  void finish(Results results, std::exception_ptr error);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Results results_;
  std::exception_ptr error_;
};

}  // namespace levada
