// Where a feed of balanced steps resumes.
#pragma once

#include <vector>

#include "levada/base/bytes.h"
#include "levada/plan/delay_queue.h"

namespace levada {

/// The cursor of the samples' source, and the samples before it that wait for a later step.
struct StepCursor {
  Bytes source;
  std::vector<DelayedSample> delayed;  ///< ascending, without their sizes

  /// Portable bytes: the source's cursor alone where no sample waits.
  Bytes encode() const;
  /// Reads bytes that may lie. What is no cursor of delayed samples is taken for one of the source. Throws
  /// CorruptMessage.
  static StepCursor decode(ByteView bytes);
};

}  // namespace levada
