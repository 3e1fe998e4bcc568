#include "levada/engine/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "levada/base/text.h"

namespace levada {
namespace {

/// Returns the number of ranks on each host.
std::vector<int> ranks_by_host(const std::vector<int>& host_of) {
  std::map<int, int> counts;
  for (const int host : host_of) ++counts[host];
  std::vector<int> ranks;
  for (const auto& [host, count] : counts) ranks.push_back(count);
  return ranks;
}

/// Returns the part of the engine's name that joins hosts: "c10d" for "shm+c10d".
std::string_view between_hosts(std::string_view name) {
  const auto plus = name.rfind('+');
  return plus == std::string_view::npos ? name : name.substr(plus + 1);
}

}  // namespace

std::string choose_engine(const std::vector<int>& host_of, std::string_view between, int degree) {
  const auto ranks = ranks_by_host(host_of);
  if (ranks.size() <= 1) return "shm";
  const bool is_direct = ranks.size() == host_of.size() && ranks.size() - 1 <= static_cast<std::size_t>(degree);
  return is_direct ? std::string(between) : fmt::format("shm+{}", between);
}

std::string describe_engine(std::string_view name, int ranks, int ranks_here) {
  if (ranks == 1) return fmt::format("{}: this is the only rank", name);
  if (ranks_here == ranks) return fmt::format("{}: all {} ranks are on one host", name, ranks);
  return fmt::format("{}: {} of {} ranks are on this host", name, ranks_here, ranks);
}

std::string describe_engine(const EngineInfo& info) {
  const auto ranks = ranks_by_host(info.host_of);
  std::string text;
  if (ranks.size() <= 1) {
    text = describe_engine(info.name, info.size, info.size);
  } else {
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    const auto on_each = *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
    text = fmt::format("{}: {} ranks on {} hosts, {} on each", info.name, info.size, ranks.size(), on_each);
  }
  const bool was_chosen =
      info.size == 1 || info.name == choose_engine(info.host_of, between_hosts(info.name), info.degree);
  return was_chosen ? text : text + ", as asked";
}

void log_engine(const EngineInfo& info) {
  const char* level = std::getenv("LEVADA_LOG");
  if (info.rank != 0 || level == nullptr || *level == '\0') return;
  const auto line = std::string_view(level) == "info"
                        ? fmt::format("levada: engine {}\n", describe_engine(info))
                        : fmt::format("levada: LEVADA_LOG is '{}'; set it to info, or unset it\n", printable(level));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace levada
