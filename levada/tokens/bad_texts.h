// What is wrong with some of the texts that are looked at together.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace levada {

/// Any thread may call.
class BadTexts {
 public:
  /// `text`: its number.
  void add(std::size_t text, const std::string& what);
  /// Throws SourceError if there is any: its text, or those of the first ten among `texts` texts, a line each.
  void throw_if_any(std::size_t texts) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::size_t, std::string> bad_;
};

}  // namespace levada
