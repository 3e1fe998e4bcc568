// What `levada plan --exchange` reads.
#pragma once

#include <string_view>
#include <vector>

#include "levada/exchange/planner.h"

namespace levada::cli {

struct ExchangeSpec {
  SampleDirectory directory;
  ExchangeRequest request;
  std::vector<int> host_of;

  // clang-format off
  /// {"holders": [{"ranks": [0], "samples": {"ids": [...], "keys": {...}}}],
  ///  "destinations": [{"ranks": [2, 3], "ids": ["a", "b"]},
  ///                   {"mesh": "dp=2,tp=2", "first": 4, "ids": [["a"], ["b"]], "cp": "zigzag"}],
  ///  "keys": ["tokens"], "cut_keys": [], "allow_absent": false, "hosts": [0, 0, 1, 1]}
  // clang-format on
  /// Samples are as SampleBatch::to_json() writes them. Only holders and destinations are required; the default of keys
  /// is all keys. Throws InvalidArgument, naming the fault and its place.
  static ExchangeSpec from_json(std::string_view text);
};

}  // namespace levada::cli
