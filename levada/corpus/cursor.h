// A position in a corpus that any later run can check and go on from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"

namespace levada {

/// What a sample's number means: two runs whose orders are equal give the same sample the same number. Properties as
/// name and value, such as {"sequence", "1024"}; a property that is absent from one side differs.
using Order = std::vector<std::pair<std::string, std::string>>;

struct Cursor {
  std::string corpus;     ///< digest of the data
  Order order;            ///< of the samples
  std::int64_t next = 0;  ///< the first sample not yet given out

  /// Portable bytes, with a version and a check sum.
  Bytes encode() const;
  /// Reads bytes that may lie. Throws CorruptMessage; Unsupported for a later version.
  static Cursor decode(ByteView bytes);
  /// Throws InvalidArgument, naming each difference, unless `there` is of the same corpus and order.
  void expect_same(const Cursor& there) const;
};

}  // namespace levada
