// The resources that this machine offers to ranks that share memory, and its limits.
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
  int cores = 1;                     ///< available to this process
  std::optional<double> core_quota;  ///< control group's quota, in cores
  std::uint64_t memory = 0;
  std::uint64_t memory_limit = 0;        ///< minimum of memory and the control groups' limits
  std::uint64_t memory_available = 0;    ///< available part of memory_limit
  std::string cgroups;                   ///< "v1", "v2", "v1 and v2", "none"
  std::optional<std::uint64_t> memlock;  ///< bytes; empty: no limit
  std::uint64_t open_files = 0;          ///< maximum number
  std::string shmem_huge_pages;          ///< "never", "advise", ...; "unknown"
  bool memory_files = false;             ///< whether memfd_create() returns sealable memory
  std::string pagemap_scan;              ///< "yes", or why not
  double copy_gb_s = 0;                  ///< copy speed of one core
  double host_copy_gb_s = 0;             ///< copy speed of all cores that this process may use, at most 8
  double wake_us = 0;                    ///< latency from waking a thread until it runs
  std::optional<double> message_us;      ///< latency of a small message over TCP; empty without a loopback network
  std::vector<NetworkLink> links;  ///< sorted by name; empty if no interface reports its speed, as in many containers
};

/// Examines this machine; measures for less than a second.
Machine examine_machine();

/// Returns a sentence for each limit on this machine's speed that explains how to lift it.
std::vector<std::string> advice_for(const Machine& machine);

/// Returns the options of `levada plan --hosts` that a single host can measure, for hosts like this one: "--link 25Gb/s
/// --memory 12.3GB/s".
std::string plan_options_for(const Machine& machine);
/// Returns a sentence for each option that a single host cannot measure, with the value to pass instead.
std::vector<std::string> unmeasured_plan_options(const Machine& machine);

/// Returns the links whose speed `folder` lists; `folder` is /sys/class/net except in tests.
std::vector<NetworkLink> network_links(const std::string& folder);
/// Returns the cores that the control groups of this process allow, v1 or v2, or nothing if they set no limit.
std::optional<double> core_quota(const ReadFile& read);
/// Returns the word in brackets: "advise" for "always within_size [advise] never".
std::string chosen_word(const std::string& text);

}  // namespace levada::cli
