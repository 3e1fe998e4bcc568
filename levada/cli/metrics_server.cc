#include "levada/cli/metrics_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "levada/base/error.h"

namespace levada::cli {
namespace {

constexpr std::size_t max_clients = 8;
/// Time limit for a client, from the connection to the last byte of the response. Progress does not extend it.
constexpr auto client_time = std::chrono::seconds(5);
/// Delay before another accept() if no descriptor is free.
constexpr auto retry_interval = std::chrono::milliseconds(100);
constexpr std::size_t max_request_bytes = 8192;

[[noreturn]] void throw_cannot_listen(const std::string& host, int port, std::string_view why) {
  throw EngineError(fmt::format("--metrics: cannot listen on port {} of {}: {}; choose another port", port, host, why));
}

UniqueFd listen_at(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool has_brackets = host.starts_with('[') && host.ends_with(']');
  const auto name = has_brackets ? host.substr(1, host.size() - 2) : host;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw_cannot_listen(host, port, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  UniqueFd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!listener || ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(listener.get(), 16) != 0) {
    throw_cannot_listen(host, port, std::strerror(errno));
  }
  return listener;
}

int milliseconds_until(Deadline deadline) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count());
}

std::string response_to(std::string_view request, const std::function<std::string()>& text) {
  const auto respond = [](std::string_view status, std::string_view body) {
    return fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        status, body.size(), body);
  };
  if (!request.starts_with("GET ")) return respond("405 Method Not Allowed", "ask with GET\n");
  const auto path = request.substr(4, request.find_first_of(" ?\r", 4) - 4);
  if (path != "/metrics" && path != "/") return respond("404 Not Found", "the numbers are at /metrics\n");
  return respond("200 OK", text());
}

}  // namespace

MetricsServer::MetricsServer(const std::string& host, int port) : listener_(listen_at(host, port)) {}

void MetricsServer::run(int stop, const std::function<std::string()>& text) {
  std::vector<pollfd> waiting;
  while (true) {
    waiting = {{.fd = stop, .events = POLLIN, .revents = 0}, {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    int timeout = -1;
    for (const auto& client : clients_) {
      const short events = client.response.empty() ? POLLIN : POLLOUT;
      waiting.push_back({.fd = client.socket.get(), .events = events, .revents = 0});
      if (timeout < 0) timeout = milliseconds_until(client.deadline);  // the first client was accepted first
    }
    ::poll(waiting.data(), waiting.size(), timeout);
    if (waiting[0].revents != 0) return;
    std::size_t number = 2;
    std::erase_if(clients_, [&](Client& client) {
      const bool is_ready = waiting[number++].revents != 0;
      return client.deadline.expired() || (is_ready && !advance(client, text));
    });
    if (waiting[1].revents != 0 && !accept_clients()) {
      pollfd stopping{.fd = stop, .events = POLLIN, .revents = 0};
      ::poll(&stopping, 1, milliseconds_until(Deadline::after(retry_interval)));
    }
  }
}

/// Accepts a client, or disconnects it immediately if it exceeds the limit. Returns false if it cannot be accepted.
bool MetricsServer::accept_clients() {
  UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  if (clients_.size() < max_clients) clients_.push_back({std::move(client), Deadline::after(client_time)});
  return true;
}

bool MetricsServer::advance(Client& client, const std::function<std::string()>& text) {
  auto& [socket, deadline, request, response] = client;
  if (response.empty()) {
    std::array<char, 1024> piece{};
    const auto got = ::recv(socket.get(), piece.data(), piece.size(), 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    request.append(piece.data(), static_cast<std::size_t>(got));
    if (request.find("\r\n\r\n") == std::string::npos) return request.size() < max_request_bytes;
    response = response_to(request, text);
  }
  const auto sent = ::send(socket.get(), response.data(), response.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  response.erase(0, static_cast<std::size_t>(sent));
  return !response.empty();
}

}  // namespace levada::cli
