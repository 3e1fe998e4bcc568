#include "levada/sources/rate_limit.h"

#include <algorithm>
#include <thread>

namespace levada {
namespace {

constexpr Duration burst = std::chrono::milliseconds(100);

class LimitedFile final : public File {
 public:
  LimitedFile(std::unique_ptr<File> file, std::shared_ptr<RateLimit> limit)
      : file_(std::move(file)), limit_(std::move(limit)) {}

  const std::string& path() const override { return file_->path(); }
  FileIdentity identity() const override { return file_->identity(); }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    const auto got = file_->read(offset, into);
    std::this_thread::sleep_until(limit_->take(got));
    return got;
  }

 private:
  std::unique_ptr<File> file_;
  std::shared_ptr<RateLimit> limit_;
};

}  // namespace

Clock::time_point RateLimit::take(std::size_t bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> price(static_cast<double>(bytes) / rate_);
  free_ = std::max(free_, now - burst) + std::chrono::duration_cast<Duration>(price);
  return free_;
}

std::unique_ptr<File> make_limited_file(std::unique_ptr<File> file, std::shared_ptr<RateLimit> limit) {
  return std::make_unique<LimitedFile>(std::move(file), std::move(limit));
}

}  // namespace levada
