#include "levada/cli/metrics_exporter.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

#include "levada/base/atomic_file.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/threads.h"
#include "levada/cli/command.h"

namespace levada::cli {
namespace {

constexpr auto file_interval = std::chrono::seconds(5);
/// Time limit for a client's request, and again for its response: other clients wait meanwhile.
constexpr auto client_time = std::chrono::seconds(1);
/// Between two tries to accept a client.
constexpr auto retry_interval = std::chrono::milliseconds(100);
constexpr std::size_t max_request_bytes = 8192;
constexpr int max_port = 65535;

/// Returns a number above max_port for one that is larger than an int.
std::optional<int> port_of(std::string_view text) {
  const auto is_digit = [](char character) { return character >= '0' && character <= '9'; };
  if (text.empty() || !std::ranges::all_of(text, is_digit)) return std::nullopt;
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() ? port : std::numeric_limits<int>::max();
}

[[noreturn]] void refuse_port(const MetricsTarget& target, std::string_view why) {
  throw EngineError(fmt::format("--metrics: {} port {} cannot be had: {}; name another one",
                                target.host.empty() ? "the" : fmt::format("{}'s", target.host), *target.port, why));
}

UniqueFd listen_at(const MetricsTarget& target) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(target.host.empty() ? nullptr : target.host.c_str(),
                                  std::to_string(*target.port).c_str(), &hints, &found);
  if (error != 0) refuse_port(target, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  UniqueFd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!listener || ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(listener.get(), 16) != 0) {
    refuse_port(target, std::strerror(errno));
  }
  return listener;
}

bool await(int socket, short event, Deadline deadline) {
  pollfd waiting{.fd = socket, .events = event, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return ::poll(&waiting, 1, static_cast<int>(left)) == 1;
}

/// Returns the request up to the end of its header; empty if the client does not send that in time.
std::string read_request(int client) {
  const auto deadline = Deadline::after(client_time);
  std::string request;
  std::array<char, 1024> piece{};
  while (request.size() < max_request_bytes && await(client, POLLIN, deadline)) {
    const auto got = ::recv(client, piece.data(), piece.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    request.append(piece.data(), static_cast<std::size_t>(got));
    if (request.find("\r\n\r\n") != std::string::npos) return request;
  }
  return {};
}

void send_all(int client, std::string_view text) {
  const auto deadline = Deadline::after(client_time);
  while (!text.empty() && await(client, POLLOUT, deadline)) {
    const auto sent = ::send(client, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void answer(int client, const std::function<std::vector<Metric>()>& collect) {
  const auto request = read_request(client);
  if (request.empty()) return;
  const auto respond = [client](std::string_view status, std::string_view body) {
    send_all(client, fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                                 "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                                 status, body.size(), body));
  };
  if (!request.starts_with("GET ")) return respond("405 Method Not Allowed", "ask with GET\n");
  const auto path = request.substr(4, request.find_first_of(" ?\r", 4) - 4);
  if (path != "/metrics" && path != "/") return respond("404 Not Found", "the numbers are at /metrics\n");
  respond("200 OK", to_prometheus(collect()));
}

}  // namespace

MetricsTarget MetricsTarget::parse(const std::string& text) {
  const auto colon = text.rfind(':');
  const bool has_host = colon != std::string::npos && colon > 0 && text.find('/') == std::string::npos;
  if (const auto port = port_of(has_host ? text.substr(colon + 1) : text)) {
    return {.host = has_host ? text.substr(0, colon) : "", .port = port, .path = {}};
  }
  if (text.find('/') == std::string::npos && (text.starts_with('-') || text.find(':') != std::string::npos)) {
    throw InvalidArgument(
        fmt::format("--metrics {}: it must be a port, HOST:PORT or a file; a file of this name is ./{}", text, text));
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
        fmt::format("--metrics {}: ports are from 1 to {}, and each rank of a host takes one from there on",
                    *target.port, max_port));
  }
}

MetricsExporter::MetricsExporter(const MetricsTarget& target, std::function<std::vector<Metric>()> collect)
    : path_(target.path), collect_(std::move(collect)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw EngineError(fmt::format("--metrics: {}", std::strerror(errno)));
  if (target.port) listener_ = listen_at(target);
  thread_ = start_thread("exporting metrics", [this] { listener_ ? serve() : write_files(); });
}

MetricsExporter::~MetricsExporter() {
  static_cast<void>(::eventfd_write(stop_.get(), 1));
  thread_.join();
}

void MetricsExporter::serve() const {
  std::array<pollfd, 2> waiting = {pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  while (true) {
    ::poll(waiting.data(), waiting.size(), -1);
    if (waiting[0].revents != 0) return;
    const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client) answer(client.get(), collect_);
    else await(stop_.get(), POLLIN, Deadline::after(retry_interval));  // no descriptor is free, perhaps
  }
}

void MetricsExporter::write_files() {
  do write_file();
  while (!await(stop_.get(), POLLIN, Deadline::after(file_interval)));
  write_file();
}

/// Reports only the first error: a run does not end because its metrics cannot be written.
void MetricsExporter::write_file() try {
  AtomicFile file(path_);
  file.write(as_bytes(to_prometheus(collect_())));
  file.publish(false);
} catch (const Error& error) {
  if (!std::exchange(has_failed_, true)) print_error(fmt::format("--metrics: {}", error.what()));
}

}  // namespace levada::cli
