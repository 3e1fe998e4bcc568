// What goes wrong, in words: for tests.
#pragma once

#include <functional>
#include <string>

#include "levada/base/error.h"

namespace levada {

/// "SourceError: cannot open ...": the Error that `act` throws; "no fault" if it throws none.
inline std::string fault_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return std::string(error.name()) + ": " + error.what();
  }
  return "no fault";
}

}  // namespace levada
