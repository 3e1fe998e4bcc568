// Ranks as processes of one host: shared memory, no names, no daemon. docs/design/shm.md explains how.
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
  /// Address space that one rank's blocks may take; memory is used only as it is written. 0: as much as the machine
  /// and the cgroup's limit allow.
  std::size_t memory_bytes = 0;
  Duration timeout = std::chrono::seconds(60);  ///< for all ranks to arrive
  /// Given a sentence on whom this rank waits for in meet(), after five seconds and then every thirty. May be empty.
  std::function<void(const std::string&)> remind = {};
  /// Given what meet() throws on a rank that rank 0 does not receive from, so that rank 0 does not show it. May be
  /// empty.
  std::function<void(const std::string&)> report = {};
  /// Once it is requested, join() and meet() throw EngineError, within 50 ms, and so do those of the ranks that have
  /// arrived.
  std::stop_token stop = {};
};

/// Collective over the ranks of one host: rank 0 gathers the others over Unix sockets and hands out the shared memory.
/// `links`: for rank 0 one connected socket to each other rank, in order (entry 0 unused); for the others entry 0
/// alone, connected to rank 0. Throws Timeout, naming the ranks that did not arrive; PeerLost, naming one that ended
/// while starting; EngineError where memory or system calls are refused, saying how to lift it.
std::shared_ptr<Engine> join(int rank, int size, std::vector<UniqueFd> links, const Options& options = {});

/// Where ranks of a host meet that nobody launched together, and how they know each other.
struct MeetingPlace {
  std::string name;  ///< unique among the jobs that know the secret, such as MASTER_PORT and a run id; shown in errors
  Secret secret;     ///< known to the ranks of the job only, or of this user only
};

/// The same for ranks that meet at an abstract Unix socket, whose name depends on the place's name and secret and
/// reveals neither. Each side proves to the other that it knows the secret; whatever else connects is ignored.
std::shared_ptr<Engine> meet(int rank, int size, const MeetingPlace& place, const Options& options = {});

/// In place of meet(), on a rank that cannot take part: the other ranks' meet() throws an error of this kind with this
/// message. Rank 0 waits a few seconds for the others to come, another rank for rank 0. Whether rank 0 knows of it:
/// false on rank 0 itself.
bool refuse_start(int rank, int size, const MeetingPlace& place, ErrorKind kind, const std::string& message);

/// Connected socket pairs for a group that is about to be started: links[r] is what rank r passes to join(). Each
/// process has to close the others', or a rank's end while starting goes unseen; exec() closes them all.
std::vector<std::vector<UniqueFd>> make_links(int size);

}  // namespace levada::shm
