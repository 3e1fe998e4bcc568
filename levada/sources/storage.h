// Storage that is slow, throttled or fails now and then.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "levada/sources/io_options.h"
#include "levada/sources/rate_limit.h"
#include "levada/sources/stall_watch.h"

namespace levada {

/// Opens files that are read as IoOptions say: again after faults that may pass, watched, and all together no faster
/// than allowed. The files may live longer than it.
class Storage {
 public:
  using Open = std::function<std::unique_ptr<File>(const std::string&)>;

  /// `open`: how files are opened beneath. Throws InvalidArgument for options that cannot work.
  Storage(IoOptions options, Open open);

  /// Throws SourceError.
  std::unique_ptr<File> open(const std::string& path) const;

 private:
  IoOptions options_;
  Open open_;
  std::shared_ptr<RateLimit> limit_;   ///< null: none
  std::shared_ptr<StallWatch> watch_;  ///< null: none
};

}  // namespace levada
