// A position in a corpus that a later run can validate and resume from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"

namespace levada {

/// What a sample's number means: in two runs with equal orders a number names the same sample. Properties as
/// name and value, such as {"sequence", "1024"}; a property that is absent from one side differs.
using Order = std::vector<std::pair<std::string, std::string>>;

/// Returns an order as it is in a Cursor's bytes.
Bytes encode_order(const Order& order);
/// Returns the bytes of a Cursor whose order is encoded already: the order of a mix of many sources is long.
Bytes encode_cursor(std::string_view corpus, ByteView order, std::int64_t next);

struct Cursor {
  std::string corpus;     ///< digest of the data
  Order order;            ///< of the samples
  std::int64_t next = 0;  ///< the first sample not yet given out

  /// Portable bytes, with a version and a check sum.
  Bytes encode() const;
  /// Decodes and validates untrusted bytes. Throws CorruptMessage; Unsupported for a later version.
  static Cursor decode(ByteView bytes);
  /// Throws InvalidArgument, naming each difference, unless `there` is of the same corpus and order.
  void expect_same(const Cursor& there) const;
};

}  // namespace levada
