#include "levada/base/host.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "levada/base/hash.h"

namespace levada {

namespace {

std::string boot() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  return std::getline(file, id) ? id : host_name();
}

std::string network() {
  std::error_code error;
  const auto link = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return error ? host_name() : link.string();
}

}  // namespace

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.substr(0, name.find('\0'));
}

std::uint64_t host_identity() {
  return hash64(as_bytes(boot() + "\n" + network() + "\n" + std::to_string(::getuid())));
}

std::uint32_t overflow_uid() {
  constexpr std::uint32_t usual = 65534;
  std::ifstream file("/proc/sys/kernel/overflowuid");
  std::uint32_t uid = 0;
  return file >> uid ? uid : usual;
}

}  // namespace levada
