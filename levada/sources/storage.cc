#include "levada/sources/storage.h"

#include <fmt/format.h>

#include <cmath>

#include "levada/base/error.h"
#include "levada/sources/retry.h"

namespace levada {
namespace {

constexpr int most_threads = 256;

void check(const IoOptions& options) {
  if (options.threads < 1 || options.threads > most_threads) {
    throw InvalidArgument(fmt::format("{} threads cannot read: take 1 to {}", options.threads, most_threads));
  }
  if (!std::isfinite(options.limit_mb_s) || options.limit_mb_s < 0) {
    throw InvalidArgument(
        fmt::format("files cannot be read with {} MB/s: take a number above zero", options.limit_mb_s));
  }
  if (options.tries < 1) throw InvalidArgument(fmt::format("a read cannot be tried {} times", options.tries));
}

}  // namespace

Storage::Storage(IoOptions options, Open open) : options_(std::move(options)), open_(std::move(open)) {
  check(options_);
  if (options_.limit_mb_s > 0) limit_ = std::make_shared<RateLimit>(options_.limit_mb_s * 1e6);
  if (options_.warn && options_.stall_after > Duration::zero()) {
    watch_ = std::make_shared<StallWatch>(options_.stall_after, options_.warn);
  }
}

std::unique_ptr<File> Storage::open(const std::string& path) const {
  auto file = open_patiently(path, options_, open_);
  if (watch_) file = make_watched_file(std::move(file), watch_);
  // Outermost: waiting for leave is no stall.
  if (limit_) file = make_limited_file(std::move(file), limit_);
  return file;
}

}  // namespace levada
