// The Engine contract as code. Each case runs on every rank of an engine and throws if an expectation fails. inproc is
// the reference; every other engine passes the same cases.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "levada/engine/engine.h"

namespace levada::conformance {

/// A failed expectation: what, where, and on which rank.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Case {
  std::string_view name;
  int min_ranks = 1;
  void (*run)(const std::shared_ptr<Engine>& engine);  ///< called on every rank at once; collective
  bool ends_group = false;                             ///< whether the engine is unusable afterwards (abort)
};

std::span<const Case> cases();

/// Ends the calling rank as if its process had suddenly died. Does not return if the rank is a process.
using Death = std::function<void()>;

/// A case in which the last rank dies, for engines whose tests can make a rank die.
struct DeathCase {
  std::string_view name;
  int min_ranks = 2;
  void (*run)(const std::shared_ptr<Engine>& engine,
              const Death& die);  ///< called on every rank at once; the last one calls `die`
};

std::span<const DeathCase> death_cases();

}  // namespace levada::conformance
