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
  std::optional<std::uint16_t> master_port = {};  ///< if present, torchrun's variables are set, with this MASTER_PORT
  bool unbuffered = false;  ///< whether to set PYTHONUNBUFFERED unless this process has that variable

  /// Returns the rank's complete environment, as NAME=VALUE: this process's variables, except those that describe a
  /// place in a job, plus the variables for the rank.
  std::vector<std::string> variables() const;
};

/// Reserves a TCP port for rank 0 to listen at. While the object lives, the port is bound, but no socket listens at it.
/// The kernel therefore does not choose it for another process, but a program that sets SO_REUSEADDR, as torch's store
/// does, can bind it.
class ReservedPort {
 public:
  /// Throws EngineError if no port is available.
  ReservedPort();
  std::uint16_t number() const { return number_; }

 private:
  UniqueFd socket_;
  std::uint16_t number_ = 0;
};

}  // namespace levada::launch
