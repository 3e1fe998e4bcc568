// An engine for ranks that are processes on one host. Uses shared memory without names and without a daemon. See
// docs/design/shm.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/secret.h"
#include "levada/base/unique_fd.h"
#include "levada/engine/engine.h"

namespace levada::shm {

struct Options {
  /// Address space for the blocks of one rank; only the parts that are written take memory. 0 for as much as the
  /// machine and the cgroup's limit allow.
  std::size_t memory_bytes = 0;
  Duration timeout = std::chrono::seconds(60);  ///< time for all ranks to arrive
  /// Called by meet() with a sentence that names the ranks that this rank is waiting for, after five seconds and then
  /// each time the wait has doubled. May be empty.
  std::function<void(const std::string&)> remind = {};
  /// Called with the error that meet() throws on a rank that has not reached rank 0, because rank 0 cannot show that
  /// error. May be empty.
  std::function<void(const std::string&)> report = {};
  /// If stop is requested, join() and meet() throw EngineError within 50 ms, also on the other ranks that have arrived.
  std::stop_token stop = {};
};

/// Joins the ranks of one host. Collective: rank 0 gathers the others over Unix sockets and distributes the shared
/// memory. On rank 0, `links` holds one connected socket for each other rank, by rank (entry 0 is unused). On the other
/// ranks, it holds only entry 0, connected to rank 0. Throws Timeout, naming the ranks that did not arrive; PeerLost,
/// naming a rank that ended while starting; EngineError if memory or system calls are refused, with the limit to raise.
std::shared_ptr<Engine> join(int rank, int size, std::vector<UniqueFd> links, const Options& options = {});

/// The place at which ranks of a host that were not launched together meet, and the secret by which they recognize each
/// other.
struct MeetingPlace {
  std::string name;  ///< unique among the jobs that know the secret, such as MASTER_PORT and a run id; shown in errors
  Secret secret;     ///< known only to the ranks of the job, or only to this user
};

/// Like join(), for ranks that meet at an abstract Unix socket. Its name depends on the place's name and secret and
/// reveals neither. Each side proves to the other that it knows the secret; all other connections are ignored.
std::shared_ptr<Engine> meet(int rank, int size, const MeetingPlace& place, const Options& options = {});

/// Makes the other ranks' meet() throw an error of this kind with this message. Called instead of meet() on a rank that
/// cannot take part. Waits a few seconds: rank 0 for the others, any other rank for rank 0. Returns whether rank 0 has
/// been notified; false on rank 0.
bool refuse_start(int rank, int size, const MeetingPlace& place, ErrorKind kind, const std::string& message);

/// Returns connected socket pairs for a group that is about to start: rank r passes links[r] to join(). Each process
/// must close the other ranks' sockets; otherwise a rank that ends while starting goes unnoticed. exec() closes all of
/// them.
std::vector<std::vector<UniqueFd>> make_links(int size);

}  // namespace levada::shm
