// The environment variables of a rank that run_local() starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levada/base/unique_fd.h"

namespace levada::launch {

struct RankEnvironment {
  int rank = 0;
  int size = 1;
  std::vector<int> links;                         ///< descriptors of shm::make_links()
  int report = -1;                                ///< descriptor that report_failure() writes to
  std::optional<std::uint16_t> master_port = {};  ///< if set, torchrun's variables are set, with this MASTER_PORT
  bool unbuffered = false;  ///< whether to set PYTHONUNBUFFERED if this process has no such variable

  /// Returns the rank's whole environment, as NAME=VALUE: this process's variables, except those that describe a place
  /// in a job, and the variables for this rank.
  std::vector<std::string> variables() const;
};

/// A TCP port for rank 0 to listen at. While the object lives, the port is bound but nothing listens at it. The kernel
/// then does not choose it for another process, and a program that sets SO_REUSEADDR, as torch's store does, can still
/// bind it.
class ReservedPort {
 public:
  /// Throws EngineError if there is none.
  ReservedPort();
  std::uint16_t number() const { return number_; }

 private:
  UniqueFd socket_;
  std::uint16_t number_ = 0;
};

}  // namespace levada::launch
