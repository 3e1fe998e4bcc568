// A position in a corpus that a later run can validate and resume from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"

namespace levada {

/// Identifies the meaning of sample numbers: in two runs with equal orders, a number refers to the same sample.
/// Consists of names and values, such as {"sequence", "1024"}; a property that only one side has counts as a
/// difference.
using Order = std::vector<std::pair<std::string, std::string>>;

/// Returns the encoding of an order in a Cursor.
Bytes encode_order(const Order& order);
/// Returns the encoding of a Cursor from an order that is already encoded, because the order of a mix of many sources
/// is long.
Bytes encode_cursor(std::string_view corpus, ByteView order, std::int64_t next);

struct Cursor {
  std::string corpus;     ///< digest of the data
  Order order;            ///< order of the samples
  std::int64_t next = 0;  ///< the first sample not yet delivered

  /// Returns portable bytes, with a version and a checksum.
  Bytes encode() const;
  /// Decodes and validates untrusted bytes. Throws CorruptMessage; Unsupported for a later version.
  static Cursor decode(ByteView bytes);
  /// Throws InvalidArgument, naming each difference, unless `there` has the same corpus and order.
  void expect_same(const Cursor& there) const;
};

}  // namespace levada
