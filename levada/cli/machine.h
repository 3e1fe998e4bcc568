// What this machine offers to ranks that share memory, and what limits them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/memory_limits.h"

namespace levada::cli {

/// A network interface that reports the speed of its link.
struct NetworkLink {
  std::string name;
  double gb_s = 0;  ///< 10^9 bits a second
  bool operator==(const NetworkLink&) const = default;
};

struct Machine {
  std::string kernel;                ///< "6.1.0-18-amd64"
  int cores = 1;                     ///< that this process may run on
  std::optional<double> core_quota;  ///< of the control group, in cores
  std::uint64_t memory = 0;
  std::uint64_t memory_limit = 0;        ///< the least of memory and the control groups'
  std::uint64_t memory_available = 0;    ///< of it
  std::string cgroups;                   ///< "v1", "v2", "v1 and v2", "none"
  std::optional<std::uint64_t> memlock;  ///< bytes; empty: no limit
  std::uint64_t open_files = 0;          ///< limit
  std::string shmem_huge_pages;          ///< "never", "advise", ...; "unknown"
  bool memory_files = false;             ///< whether memfd_create() returns sealable memory
  std::string pagemap_scan;              ///< "yes", or why not
  double copy_gb_s = 0;                  ///< of one core
  double wake_us = 0;                    ///< from waking a thread to its running
  std::optional<double> message_us;      ///< from sending over TCP to having it; empty: no loopback network
  std::vector<NetworkLink> links;  ///< by name; none where only the network's other end knows, as in many containers
};

/// Finds out, measuring for less than a second.
Machine examine_machine();

/// What limits speed here and how to lift it; a sentence each, none where all is well.
std::vector<std::string> advice_for(const Machine& machine);

/// Returns the links whose speed is in `folder`, /sys/class/net.
std::vector<NetworkLink> network_links(const std::string& folder);
/// Cores that the control groups above this process allow, v1 or v2; empty where they set no limit.
std::optional<double> core_quota(const ReadFile& read);
/// Returns the word in brackets: "advise" for "always within_size [advise] never".
std::string chosen_word(const std::string& text);

}  // namespace levada::cli
