// Faults as text, for tests.
#pragma once

#include <functional>
#include <string>

#include "levada/base/error.h"

namespace levada {

/// Returns "SourceError: cannot open ..." for the Error that `act` throws, or "no fault".
inline std::string fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return std::string(error.name()) + ": " + error.what();
  }
  return "no fault";
}

}  // namespace levada
