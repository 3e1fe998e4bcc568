#include "levada/cli/metrics_exporter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "levada/base/atomic_file.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/cli/command.h"

namespace levada::cli {
namespace {

constexpr auto file_interval = std::chrono::seconds(5);
constexpr int max_port = 65535;
/// The default address: metrics name ranks, stages and rates, so other machines read them only if the user opts in.
constexpr const char* loopback = "127.0.0.1";

/// Returns a number above max_port if the value does not fit into an int.
std::optional<int> port_of(std::string_view text) {
  const auto is_digit = [](char character) { return character >= '0' && character <= '9'; };
  if (text.empty() || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() ? port : std::numeric_limits<int>::max();
}

/// Waits until `stop` is readable; returns false at the deadline.
bool await(const UniqueFd& stop, Deadline deadline) {
  pollfd waiting{.fd = stop.get(), .events = POLLIN, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return ::poll(&waiting, 1, static_cast<int>(left)) == 1;
}

}  // namespace

MetricsTarget MetricsTarget::parse(const std::string& text) {
  const auto colon = text.rfind(':');
  const bool has_host = colon != std::string::npos && colon > 0 && text.find('/') == std::string::npos;
  if (const auto port = port_of(has_host ? text.substr(colon + 1) : text)) {
    return {.host = has_host ? text.substr(0, colon) : loopback, .port = port, .path = {}};
  }
  if (text.find('/') == std::string::npos && (text.starts_with('-') || text.find(':') != std::string::npos)) {
    throw InvalidArgument(fmt::format(
        "--metrics {}: it must be a port, HOST:PORT or a file; for a file of this name, write ./{}", text, text));
  }
  return {.host = {}, .port = {}, .path = text};
}

MetricsTarget MetricsTarget::of(const EngineInfo& info) const {
  MetricsTarget own = *this;
  const auto& hosts = info.host_of;
  const auto me = hosts.begin() + info.rank;
  if (own.port) *own.port += static_cast<int>(std::count(hosts.begin(), me, *me));
  if (own.port || info.size == 1) return own;
  const std::filesystem::path whole(path);
  own.path =
      whole.parent_path() / fmt::format("{}.rank{}{}", whole.stem().string(), info.rank, whole.extension().string());
  return own;
}

void check(const MetricsTarget& target, int ranks) {
  if (!target.port) return check_outputs({{"--metrics", target.path}});
  if (*target.port < 1 || *target.port > max_port - (ranks - 1)) {
    throw InvalidArgument(
        fmt::format("--metrics {}: ports range from 1 to {}, and each further rank of a host uses the next one",
                    *target.port, max_port));
  }
}

MetricsExporter::MetricsExporter(const MetricsTarget& target, std::function<std::vector<Metric>()> collect)
    : path_(target.path), collect_(std::move(collect)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw EngineError(fmt::format("--metrics: {}", std::strerror(errno)));
  if (target.port) server_.emplace(target.host, *target.port);
  thread_ = start_thread("exporting metrics", [this] {
    if (server_) server_->run(stop_.get(), [this] { return to_prometheus(collect_()); });
    else write_files();
  });
}

MetricsExporter::~MetricsExporter() {
  static_cast<void>(::eventfd_write(stop_.get(), 1));
  thread_.join();
}

void MetricsExporter::write_files() {
  do write_file();
  while (!await(stop_, Deadline::after(file_interval)));
  write_file();
}

/// Reports only the first error, since a run must not end because its metrics cannot be written.
void MetricsExporter::write_file() try {
  AtomicFile file(path_);
  file.write(as_bytes(to_prometheus(collect_())));
  file.publish(false);
} catch (const Error& error) {
  if (!std::exchange(has_failed_, true)) print_error(fmt::format("--metrics: {}", error.what()));
}

}  // namespace levada::cli
