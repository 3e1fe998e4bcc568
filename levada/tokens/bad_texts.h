// Collects the errors of texts that are processed together.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace levada {

/// Collects errors by text number. Thread-safe.
class BadTexts {
 public:
  /// `text`: the number of the text.
  void add(std::size_t text, const std::string& what);
  /// Throws SourceError if any text is bad. The message lists the first ten bad ones, a line each, or only states the
  /// error if there is just one.
  void throw_if_any(std::size_t texts) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::size_t, std::string> bad_;
};

}  // namespace levada
