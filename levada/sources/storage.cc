#include "levada/sources/storage.h"

#include <fmt/format.h>

#include <cmath>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/sources/retry.h"

namespace levada {
namespace {

constexpr int max_io_threads = 256;

void check(const IoOptions& options) {
  if (options.threads < 1 || options.threads > max_io_threads) {
    throw InvalidArgument(
        fmt::format("the number of reading threads is {}; it must be from 1 to {}", options.threads, max_io_threads));
  }
  if (!std::isfinite(options.limit_mb_s) || options.limit_mb_s < 0) {
    throw InvalidArgument(fmt::format("the limit of reading is {} MB/s; it must be positive", options.limit_mb_s));
  }
  if (options.tries < 1) throw InvalidArgument(fmt::format("a read cannot be tried {} times", options.tries));
}

}  // namespace

Storage::Storage(IoOptions options, Open open, RemoteFiles remote, BlockCacheOptions blocks)
    : options_(std::move(options)),
      open_(std::move(open)),
      remote_(std::move(remote)),
      block_options_(std::move(blocks)) {
  check(options_);
  if (options_.limit_mb_s > 0) limit_ = std::make_shared<RateLimit>(options_.limit_mb_s * 1e6);
  if (options_.warn && options_.stall_after > Duration::zero()) {
    monitor_ = std::make_shared<SlowReadMonitor>(options_.stall_after, options_.warn);
  }
}

std::unique_ptr<File> Storage::open(const std::string& path) const {
  const bool is_remote = is_url(path);
  if (is_remote) expect_remote(path);
  auto file = open_patiently(path, options_, is_remote ? remote_.open : open_);
  if (monitor_) file = make_monitored_file(std::move(file), monitor_);
  // Wraps the monitored file, because waiting for the rate limit is not a stall.
  if (limit_) file = make_limited_file(std::move(file), limit_);
  return is_remote ? blocks()->wrap(std::move(file)) : std::move(file);
}

std::vector<std::string> Storage::list(const std::string& url) const {
  expect_remote(url);
  return list_patiently(url, options_, remote_.list);
}

void Storage::expect_remote(const std::string& url) const {
  if (remote_.open) return;
  throw Unsupported(
      fmt::format("{} is a URL, which only the Python package reads: run the levada command of a Python that has "
                  "levada[storage] installed",
                  printable(url)));
}

std::shared_ptr<BlockCache> Storage::blocks() const {
  const std::lock_guard lock(mutex_);
  if (!blocks_) blocks_ = std::make_shared<BlockCache>(block_options_);
  return blocks_;
}

}  // namespace levada
