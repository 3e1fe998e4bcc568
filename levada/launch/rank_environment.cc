#include "levada/launch/rank_environment.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "levada/base/error.h"
#include "levada/launch/inherited.h"

extern char** environ;

namespace levada::launch {
namespace {

bool is_levadas(std::string_view name) {
  constexpr std::array names = {
      "LEVADA_RANK",       "LEVADA_WORLD_SIZE", "LEVADA_LOCAL_RANK", "LEVADA_LOCAL_WORLD_SIZE",
      "LEVADA_RENDEZVOUS", links_variable,      report_variable};
  return std::ranges::find(names, name) != names.end();
}

/// Includes the variables with the address of torchrun's store, which a rank of another job must not connect to.
bool is_torchruns(std::string_view name) {
  constexpr std::array names = {"RANK",      "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE",
                                "NODE_RANK", "GROUP_RANK",  "ROLE_RANK",  "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
                                "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"};
  return name.starts_with("TORCHELASTIC_") || std::ranges::find(names, name) != names.end();
}

}  // namespace

std::vector<std::string> RankEnvironment::variables() const {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto name = text.substr(0, text.find('='));
    if (!is_levadas(name) && !(master_port && is_torchruns(name))) variables.emplace_back(text);
  }
  variables.push_back(fmt::format("LEVADA_RANK={}", rank));
  variables.push_back(fmt::format("LEVADA_WORLD_SIZE={}", size));
  variables.push_back(fmt::format("{}={}", links_variable, links_text(links)));
  variables.push_back(fmt::format("{}={}", report_variable, report_channel(report)));
  if (master_port) {
    variables.push_back(fmt::format("RANK={}", rank));
    variables.push_back(fmt::format("WORLD_SIZE={}", size));
    variables.push_back(fmt::format("LOCAL_RANK={}", rank));
    variables.push_back(fmt::format("LOCAL_WORLD_SIZE={}", size));
    variables.emplace_back("MASTER_ADDR=127.0.0.1");
    variables.push_back(fmt::format("MASTER_PORT={}", *master_port));
  }
  if (unbuffered && std::getenv("PYTHONUNBUFFERED") == nullptr) variables.emplace_back("PYTHONUNBUFFERED=1");
  return variables;
}

ReservedPort::ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // torch's store listens at every address
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!socket_ || ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket_.get(), any, length) != 0 || ::getsockname(socket_.get(), any, &length) != 0) {
    throw EngineError(fmt::format("cannot start the ranks: a port for MASTER_PORT: {}", std::strerror(errno)));
  }
  number_ = ntohs(address.sin_port);
}

}  // namespace levada::launch
