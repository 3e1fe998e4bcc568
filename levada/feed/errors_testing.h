// Helpers for tests of a feed's faults.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levada/engine/inproc/inproc.h"
#include "levada/feed/source_testing.h"

namespace levada::testing {

/// Runs `body` on every rank. Returns each rank's error as "Name: message", or "none".
inline std::vector<std::string> errors_of(int ranks, const std::function<void(const std::shared_ptr<Engine>&)>& body,
                                          const inproc::Options& options = {}) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  inproc::run_ranks(
      ranks,
      [&](const std::shared_ptr<Engine>& engine) {
        auto& error = errors[static_cast<std::size_t>(engine->info().rank)];
        try {
          body(engine);
          error = "none";
        } catch (const Error& thrown) {
          error = std::string(thrown.name()) + ": " + thrown.what();
        }
      },
      options);
  return errors;
}

inline std::shared_ptr<Source> numbered(NumberedOptions options = {}) {
  return std::make_shared<Numbered>(std::move(options));
}

}  // namespace levada::testing
