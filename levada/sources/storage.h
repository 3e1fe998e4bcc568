// Storage that is slow, throttled or occasionally fails.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "levada/sources/block_cache.h"
#include "levada/sources/io_options.h"
#include "levada/sources/rate_limit.h"
#include "levada/sources/remote_files.h"
#include "levada/sources/slow_read_monitor.h"

namespace levada {

/// Opens files whose reads are retried after transient faults, monitored and rate-limited as IoOptions determine. Files
/// with URLs are read through a BlockCache. The files may outlive this object. Thread-safe.
class Storage {
 public:
  using Open = std::function<std::unique_ptr<File>(const std::string&)>;

  /// `open` opens files without URLs. Throws InvalidArgument for options out of range.
  Storage(IoOptions options, Open open, RemoteFiles remote = {}, BlockCacheOptions blocks = {});

  /// Throws SourceError, or Unsupported for a URL without RemoteFiles.
  std::unique_ptr<File> open(const std::string& path) const;
  /// Calls RemoteFiles::list(). Throws as open() does.
  std::vector<std::string> list(const std::string& url) const;

 private:
  void expect_remote(const std::string& url) const;
  std::shared_ptr<BlockCache> blocks() const;

  IoOptions options_;
  Open open_;
  RemoteFiles remote_;
  BlockCacheOptions block_options_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<BlockCache> blocks_;  ///< guarded by mutex_; null until a file with a URL is opened
  std::shared_ptr<RateLimit> limit_;            ///< null: none
  std::shared_ptr<SlowReadMonitor> monitor_;    ///< null: none
};

}  // namespace levada
