// The input of `levada plan --exchange`.
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
  /// Samples have the form that SampleBatch::to_json() writes. Only holders and destinations are required; keys default
  /// to all keys. Throws InvalidArgument that describes the error and where it is.
  static ExchangeSpec from_json(std::string_view text);
};

}  // namespace levada::cli
