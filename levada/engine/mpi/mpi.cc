#include "levada/engine/mpi/mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/mpi/transport.h"
#include "levada/engine/p2p/p2p.h"
#include "levada/engine/shm/shm.h"

namespace levada::mpi {
namespace {

/// What each rank sends all others before engines are made.
struct Terms {
  std::uint64_t host = 0;
  std::uint64_t max_piece_bytes = 0;
  std::int32_t thread_level = 0;
  std::int32_t reserved = 0;
  std::uint64_t nonce = 0;
};

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    default: return "MPI_THREAD_SERIALIZED";
  }
}

/// Throws the same on all ranks.
void check_terms(const std::vector<Terms>& terms) {
  for (std::size_t rank = 0; rank < terms.size(); ++rank) {
    if (terms[rank].thread_level < MPI_THREAD_MULTIPLE) {
      throw Unsupported(
          fmt::format("MPI provides {} on rank {}, but engines over MPI need MPI_THREAD_MULTIPLE, since a thread of "
                      "its own calls MPI: initialize MPI by MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, "
                      "&provided), with an MPI library that was built with threads",
                      name_of_level(terms[rank].thread_level), rank));
    }
    if (terms[rank].max_piece_bytes < 1 || terms[rank].max_piece_bytes > std::numeric_limits<int>::max()) {
      throw InvalidArgument(fmt::format("max_piece_bytes must be between 1 and {}, got {} on rank {}",
                                        std::numeric_limits<int>::max(), terms[rank].max_piece_bytes, rank));
    }
    if (terms[rank].max_piece_bytes != terms[0].max_piece_bytes) {
      throw InvalidArgument(fmt::format("max_piece_bytes is {} on rank 0 and {} on rank {}; give all ranks the same",
                                        terms[0].max_piece_bytes, terms[rank].max_piece_bytes, rank));
    }
  }
}

std::vector<int> hosts_of(const std::vector<Terms>& terms) {
  std::vector<std::uint64_t> hosts;
  std::vector<int> host_of;
  for (const Terms& each : terms) {
    const auto found = std::find(hosts.begin(), hosts.end(), each.host);
    host_of.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(each.host);
  }
  return host_of;
}

void check_initialized() {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized == 0) {
    throw InvalidArgument(
        "MPI is not initialized; call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) before "
        "levada::mpi::Communicator is made");
  }
  if (is_finalized == 0) return;
  throw InvalidArgument("MPI is finalized; make and destroy levada::mpi::Communicator before MPI_Finalize()");
}

/// A launcher of another MPI starts the ranks, but each of them finds itself alone.
void check_launcher(int world_size) {
  if (world_size != 1) return;
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const std::string_view text = std::getenv(name) == nullptr ? "" : std::getenv(name);
    int started = 0;
    std::from_chars(text.data(), text.data() + text.size(), started);
    if (started <= 1) continue;
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
    int length = 0;
    MPI_Get_library_version(version.data(), &length);
    const std::string_view library(version.data(), static_cast<std::size_t>(length));
    throw Unsupported(
        fmt::format("the launcher has started {} ranks ({}={}), but MPI_COMM_WORLD has one: start the program with the "
                    "mpirun, or the srun --mpi=, of the MPI that it is linked with, which is {}",
                    started, name, text, library.substr(0, library.find_first_of(",\n"))));
  }
}

}  // namespace

Communicator::Communicator(MPI_Comm parent, std::size_t max_piece_bytes) : max_piece_bytes_(max_piece_bytes) {
  check_initialized();
  if (parent == MPI_COMM_NULL) throw InvalidArgument("engines over MPI need a communicator, not MPI_COMM_NULL");
  int is_inter = 0, size = 0, world_size = 0;
  check(MPI_Comm_test_inter(parent, &is_inter), "MPI_Comm_test_inter()");
  if (is_inter != 0) throw InvalidArgument("engines over MPI need an intracommunicator; use MPI_Intercomm_merge()");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size()");
  check_launcher(world_size);
  check(MPI_Comm_dup(parent, &duplicate_.comm), "MPI_Comm_dup()");
  check(MPI_Comm_set_errhandler(duplicate_.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler()");
  check(MPI_Comm_rank(duplicate_.comm, &rank_), "MPI_Comm_rank()");
  check(MPI_Comm_size(duplicate_.comm, &size), "MPI_Comm_size()");
  std::random_device random;
  Terms mine{
      .host = host_identity(), .max_piece_bytes = max_piece_bytes, .nonce = std::uint64_t{random()} << 32 | random()};
  check(MPI_Query_thread(&mine.thread_level), "MPI_Query_thread()");
  std::vector<Terms> terms(static_cast<std::size_t>(size));
  check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, terms.data(), sizeof mine, MPI_BYTE, duplicate_.comm),
        "MPI_Allgather()");
  check_terms(terms);
  host_of_ = hosts_of(terms);
  nonce_ = terms[0].nonce;
}

Communicator::~Communicator() {
  for (const auto& transport : transports_) {
    if (!transport->has_left()) {
      std::fprintf(stderr,
                   "levada: rank %d destroys its levada::mpi::Communicator while an engine over it is in use; destroy "
                   "the engine, its channels and leases before\n",
                   rank_);
      MPI_Abort(duplicate_.comm, EXIT_FAILURE);
    }
    transport->wait_until_over();
  }
}

Communicator::Duplicate::~Duplicate() {
  if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
}

std::shared_ptr<Engine> Communicator::make_engine(const Options& options) {
  std::erase_if(transports_, [](const auto& each) { return each->is_over(); });
  // MPI has at least 32,768 tags. Those of engines that some ranks have left and others not differ.
  constexpr int max_engines = 16'000;
  const int tag = 2 * (num_engines_++ % max_engines);
  transports_.push_back(std::make_shared<MpiTransport>(
      MpiTransport::Settings{
          .communicator = duplicate_.comm, .header_tag = tag, .body_tag = tag + 1, .max_piece_bytes = max_piece_bytes_},
      rank_, host_of_));
  return p2p::make_engine(transports_.back(), {.memory_bytes = options.memory_bytes, .heartbeat = options.heartbeat});
}

std::shared_ptr<Engine> Communicator::join_hosts(const Options& options, Duration timeout) {
  const int host = host_of_[static_cast<std::size_t>(rank_)];
  const auto count_until = [&](auto end) { return static_cast<int>(std::count(host_of_.begin(), end, host)); };
  const std::set<int> hosts(host_of_.begin(), host_of_.end());
  if (hosts.size() == host_of_.size()) return make_engine(options);
  const std::string name = fmt::format("levada-mpi-{:016x}-{}-{}", nonce_, num_joins_++, host);
  auto near = shm::meet(count_until(host_of_.begin() + rank_), count_until(host_of_.end()), name,
                        {.memory_bytes = options.memory_bytes, .timeout = timeout});
  return hosts.size() == 1 ? near : joined::make_engine(std::move(near), make_engine(options));
}

}  // namespace levada::mpi
