#include "levada/engine/mpi/mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/engine/mpi/transport.h"
#include "levada/engine/p2p/p2p.h"

namespace levada::mpi {
namespace {

/// What Levada keeps with a communicator of the program's, as an attribute of it.
struct Cached {
  MPI_Comm duplicate = MPI_COMM_NULL;
  int finalize_key = MPI_KEYVAL_INVALID;  ///< under which MPI_COMM_SELF has it too: MPI_Finalize() frees that first
  int num_engines = 0;                    ///< that there have been
  std::vector<std::shared_ptr<MpiTransport>> transports = {};  ///< that may not be over
};

void wait_until_over(Cached& cached, const char* call) {
  for (const auto& transport : cached.transports) {
    if (!transport->has_left()) {
      std::fprintf(stderr,
                   "levada: rank %d calls %s while its engine over MPI is in use; destroy the engine, its channels and "
                   "leases before\n",
                   transport->rank(), call);
      MPI_Abort(cached.duplicate, EXIT_FAILURE);
    }
    transport->wait_until_over();
  }
  cached.transports.clear();
}

int on_finalize(MPI_Comm /*self*/, int /*key*/, void* value, void* /*extra*/) {
  auto& cached = *static_cast<Cached*>(value);
  if (cached.duplicate == MPI_COMM_NULL) return MPI_SUCCESS;
  wait_until_over(cached, "MPI_Finalize()");
  return MPI_Comm_free(&cached.duplicate);
}

int on_free(MPI_Comm /*communicator*/, int /*key*/, void* value, void* /*extra*/) {
  auto& cached = *static_cast<Cached*>(value);
  if (cached.duplicate == MPI_COMM_NULL) return MPI_SUCCESS;  // of a communicator that MPI_Finalize() frees
  wait_until_over(cached, "MPI_Comm_free()");
  MPI_Comm_free(&cached.duplicate);
  const int result = MPI_Comm_delete_attr(MPI_COMM_SELF, cached.finalize_key);
  MPI_Comm_free_keyval(&cached.finalize_key);
  delete &cached;
  return result;
}

Cached& cached_with(MPI_Comm communicator) {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_free, &made, nullptr), "MPI_Comm_create_keyval()");
    return made;
  }();
  void* found = nullptr;
  int is_found = 0;
  check(MPI_Comm_get_attr(communicator, key, static_cast<void*>(&found), &is_found), "MPI_Comm_get_attr()");
  if (is_found != 0) return *static_cast<Cached*>(found);
  auto cached = std::make_unique<Cached>();
  check(MPI_Comm_dup(communicator, &cached->duplicate), "MPI_Comm_dup()");
  check(MPI_Comm_set_errhandler(cached->duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler()");
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &cached->finalize_key, nullptr),
        "MPI_Comm_create_keyval()");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, cached->finalize_key, cached.get()), "MPI_Comm_set_attr()");
  check(MPI_Comm_set_attr(communicator, key, cached.get()), "MPI_Comm_set_attr()");
  return *cached.release();
}

/// What a rank tells the others before an engine is made.
struct Terms {
  std::uint64_t host = 0;
  std::uint64_t max_piece_bytes = 0;
  std::int32_t thread_level = 0;
  std::int32_t reserved = 0;
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
          fmt::format("MPI provides {} on rank {}, but an engine over MPI needs MPI_THREAD_MULTIPLE, since a thread of "
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
        "MPI is not initialized; call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) before an engine "
        "over MPI is made");
  }
  if (is_finalized != 0) throw InvalidArgument("MPI is finalized; make engines over MPI before MPI_Finalize()");
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

std::shared_ptr<Engine> make_engine(MPI_Comm communicator, const Options& options) {
  check_initialized();
  if (communicator == MPI_COMM_NULL)
    throw InvalidArgument("an engine over MPI needs a communicator, not MPI_COMM_NULL");
  int is_inter = 0, rank = 0, size = 0, world_size = 0;
  check(MPI_Comm_test_inter(communicator, &is_inter), "MPI_Comm_test_inter()");
  if (is_inter != 0) throw InvalidArgument("an engine over MPI needs an intracommunicator; use MPI_Intercomm_merge()");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size()");
  check_launcher(world_size);
  check(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank()");
  check(MPI_Comm_size(communicator, &size), "MPI_Comm_size()");

  Terms mine{.host = host_identity(), .max_piece_bytes = options.max_piece_bytes};
  check(MPI_Query_thread(&mine.thread_level), "MPI_Query_thread()");
  std::vector<Terms> terms{mine};
  MpiTransport::Settings settings{.max_piece_bytes = options.max_piece_bytes};
  Cached* const cached = size == 1 ? nullptr : &cached_with(communicator);
  if (cached != nullptr) {
    terms.resize(static_cast<std::size_t>(size));
    check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, terms.data(), sizeof mine, MPI_BYTE, cached->duplicate),
          "MPI_Allgather()");
    settings.communicator = cached->duplicate;
    // MPI has at least 32,768 tags. Those of engines that some ranks have left and others not differ.
    constexpr int max_engines = 16'000;
    settings.header_tag = 2 * (cached->num_engines++ % max_engines);
    settings.body_tag = settings.header_tag + 1;
  }
  check_terms(terms);
  const auto transport = std::make_shared<MpiTransport>(settings, rank, hosts_of(terms));
  if (cached != nullptr) {
    std::erase_if(cached->transports, [](const auto& each) { return each->is_over(); });
    cached->transports.push_back(transport);
  }
  return p2p::make_engine(transport, {.memory_bytes = options.memory_bytes, .heartbeat = options.heartbeat});
}

}  // namespace levada::mpi
