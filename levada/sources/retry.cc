#include "levada/sources/retry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace levada {
namespace {

/// Calls `act` until it succeeds, fails with a fault that is not transient, or the tries are used up.
template <typename Act>
auto with_tries(const IoOptions& options, const Act& act) {
  const auto begin = Clock::now();
  auto failed_at = Clock::time_point::max();
  auto pause = options.retry_after;
  for (int tries = 1;; ++tries) {
    try {
      return act();
    } catch (const StorageFault& fault) {
      if (!may_pass(fault.error())) throw;
      const auto now = Clock::now();
      const auto taken = now - begin;
      failed_at = std::min(failed_at, now);
      if (tries >= options.tries || now - failed_at + pause > options.retry_for) {
        throw StorageFault(fault.error(),
                           fmt::format("{} (tried {} in {})", fault.what(),
                                       tries == 1 ? "once" : fmt::format("{} times", tries), format_duration(taken)));
      }
      if (tries == 1 && options.warn) options.warn(fmt::format("{}; trying again", fault.what()));
    }
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

class RetryingFile final : public File {
 public:
  RetryingFile(std::unique_ptr<File> file, const IoOptions& options) : file_(std::move(file)), options_(options) {}

  const std::string& path() const override { return file_->path(); }
  FileIdentity identity() const override {
    return with_tries(options_, [&] { return file_->identity(); });
  }
  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    return with_tries(options_, [&] { return file_->read(offset, into); });
  }

 private:
  std::unique_ptr<File> file_;
  IoOptions options_;
};

}  // namespace

bool may_pass(int error) {
  switch (error) {
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
    case EINTR:
    case ENETDOWN:
    case ENETUNREACH:
    case ECONNRESET:
    case EHOSTDOWN:
    case EREMOTEIO: return true;
    default: return false;
  }
}

std::unique_ptr<File> open_patiently(const std::string& path, const IoOptions& options,
                                     const std::function<std::unique_ptr<File>(const std::string&)>& open) {
  auto file = with_tries(options, [&] { return open(path); });
  return std::make_unique<RetryingFile>(std::move(file), options);
}

std::vector<std::string> list_patiently(const std::string& name, const IoOptions& options,
                                        const std::function<std::vector<std::string>(const std::string&)>& list) {
  return with_tries(options, [&] { return list(name); });
}

}  // namespace levada
