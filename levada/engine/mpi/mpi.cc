#include "levada/engine/mpi/mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/host.h"
#include "levada/base/open_files.h"
#include "levada/base/secret.h"
#include "levada/engine/choice.h"
#include "levada/engine/greeting.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/mpi/collective.h"
#include "levada/engine/mpi/host_watch.h"
#include "levada/engine/mpi/transport.h"
#include "levada/engine/p2p/p2p.h"
#include "levada/engine/process_failure.h"
#include "levada/engine/shm/shm.h"

namespace levada::mpi {
namespace {

/// "auto" chooses among the others.
constexpr std::array<std::string_view, 4> engine_names = {"auto", "shm", "mpi", "shm+mpi"};

/// How long a rank that ends after a failure waits for the others.
constexpr Duration failed_leave_timeout = std::chrono::seconds(5);

/// Sent by each rank to all others before engines are made.
struct Hello {
  std::uint64_t host = 0;
  std::uint64_t max_piece_bytes = 0;
  Secret secret{};  ///< rank 0's is the job's
  std::int64_t degree = 0;
  std::int32_t thread_level = 0;
  std::int32_t silence = 0;       ///< in seconds; rank 0's counts
  std::array<char, 24> engine{};  ///< the engine's name, truncated

  std::string_view engine_name() const { return engine.data(); }
};
static_assert(std::has_unique_object_representations_v<Hello>);

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    default: return "MPI_THREAD_SERIALIZED";
  }
}

// These checks throw the same error on all ranks.

void check_options(const std::vector<Hello>& hellos) {
  for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
    const Hello& each = hellos[rank];
    if (std::find(engine_names.begin(), engine_names.end(), each.engine_name()) == engine_names.end()) {
      throw InvalidArgument(fmt::format("engine must be one of {}, got '{}' on rank {}", fmt::join(engine_names, ", "),
                                        each.engine_name(), rank));
    }
    if (each.engine_name() != hellos[0].engine_name()) {
      throw InvalidArgument(fmt::format("engine is {} on rank 0 and {} on rank {}; pass the same value on all ranks",
                                        hellos[0].engine_name(), each.engine_name(), rank));
    }
    if (each.degree < 1) {
      throw InvalidArgument(fmt::format("degree must be at least 1, got {} on rank {}", each.degree, rank));
    }
    if (each.degree != hellos[0].degree) {
      throw InvalidArgument(fmt::format("degree is {} on rank 0 and {} on rank {}; pass the same value on all ranks",
                                        hellos[0].degree, each.degree, rank));
    }
    if (each.max_piece_bytes < 1 || each.max_piece_bytes > std::numeric_limits<int>::max()) {
      throw InvalidArgument(fmt::format("max_piece_bytes must be between 1 and {}, got {} on rank {}",
                                        std::numeric_limits<int>::max(), each.max_piece_bytes, rank));
    }
    if (each.max_piece_bytes != hellos[0].max_piece_bytes) {
      throw InvalidArgument(
          fmt::format("max_piece_bytes is {} on rank 0 and {} on rank {}; pass the same value on all ranks",
                      hellos[0].max_piece_bytes, each.max_piece_bytes, rank));
    }
  }
}

void check_threads(const std::vector<Hello>& hellos, std::string_view engine) {
  for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
    if (hellos[rank].thread_level >= MPI_THREAD_MULTIPLE) continue;
    throw Unsupported(
        fmt::format("MPI provides {} on rank {}, but the engine {} needs MPI_THREAD_MULTIPLE, because its own thread "
                    "calls MPI: initialize MPI by MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided), with "
                    "an MPI library that was built with threads",
                    name_of_level(hellos[rank].thread_level), rank, engine));
  }
}

/// Returns the engine to use for these ranks.
std::string engine_for(const std::vector<int>& host_of, const Options& options) {
  const std::string_view asked = options.engine;
  const auto num_hosts = std::set<int>(host_of.begin(), host_of.end()).size();
  if (asked == "shm" && num_hosts > 1) {
    throw Unsupported(
        fmt::format("the ranks are on {} hosts, which the engine shm cannot join; use shm+mpi, or auto", num_hosts));
  }
  return asked == engine_names[0] ? choose_engine(host_of, "mpi", options.degree) : std::string(asked);
}

std::vector<int> hosts_of(const std::vector<Hello>& hellos) {
  std::vector<std::uint64_t> hosts;
  std::vector<int> host_of;
  for (const Hello& each : hellos) {
    const auto found = std::find(hosts.begin(), hosts.end(), each.host);
    host_of.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(each.host);
  }
  return host_of;
}

/// Returns the seconds after which a host that does not answer is lost; 0 for never, -1 if the variable is invalid.
std::int32_t silence() {
  const char* const value = std::getenv("LEVADA_SILENCE");
  const std::string_view text = value == nullptr ? "10" : value;
  constexpr std::int32_t largest = 24 * 60 * 60;
  std::int32_t seconds = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && (seconds == 0 || (seconds >= 3 && seconds <= largest)) ? seconds : -1;
}

void check_silence(const Hello& of_rank_0) {
  if (of_rank_0.silence >= 0) return;
  throw InvalidArgument("LEVADA_SILENCE of rank 0 must be a number of seconds from 3 to 86400, or 0 for no limit");
}

/// Waits at most `timeout` for all ranks to call this. Returns whether they have.
bool meets(MPI_Comm comm, Duration timeout) noexcept try {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(comm, &request), "MPI_Ibarrier()");
  return completes(request, timeout);
} catch (const Error&) {  // a rank is lost
  return false;
}

void check_initialized() {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized == 0) {
    throw InvalidArgument(
        "MPI is not initialized; call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) before "
        "constructing levada::mpi::Communicator");
  }
  if (is_finalized == 0) return;
  throw InvalidArgument("MPI is finalized; construct and destroy levada::mpi::Communicator before MPI_Finalize()");
}

/// Throws if each rank is a world of one although a launcher has started several, because the launcher belongs to
/// another MPI or to none.
void check_launcher(int world_size) {
  if (world_size != 1) return;
  for (const char* const name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "LEVADA_WORLD_SIZE", "WORLD_SIZE"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    const std::string_view text = value;
    int started = 0;
    std::from_chars(text.data(), text.data() + text.size(), started);
    if (started <= 1) return;  // the variables may belong to an outer launcher
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

Communicator::Communicator(MPI_Comm parent, Options options) : options_(std::move(options)) {
  check_initialized();
  if (parent == MPI_COMM_NULL) throw InvalidArgument("engines over MPI need a communicator, not MPI_COMM_NULL");
  int is_inter = 0, world_size = 0;
  check(MPI_Comm_test_inter(parent, &is_inter), "MPI_Comm_test_inter()");
  if (is_inter != 0) throw InvalidArgument("engines over MPI need an intracommunicator; use MPI_Intercomm_merge()");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size()");
  check_launcher(world_size);
  duplicate_.comm = duplicate(parent, options_.timeout);
  check(MPI_Comm_set_errhandler(duplicate_.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler()");
  check(MPI_Comm_rank(duplicate_.comm, &rank_), "MPI_Comm_rank()");
  check_greetings(gather_all(group_greeting(host_name()), options_.timeout));
  Hello mine{.host = host_identity(),
             .max_piece_bytes = options_.max_piece_bytes,
             .secret = random_secret(),
             .degree = options_.degree,
             .silence = silence()};
  options_.engine.copy(mine.engine.data(), mine.engine.size() - 1);
  check(MPI_Query_thread(&mine.thread_level), "MPI_Query_thread()");
  const auto hellos = gather_all(mine, options_.timeout);
  check_options(hellos);
  check_silence(hellos[0]);
  host_of_ = hosts_of(hellos);
  secret_ = hellos[0].secret;
  options_.engine = engine_for(host_of_, options_);
  if (options_.engine == "shm") return;
  check_threads(hellos, options_.engine);
  if (choose_engine(host_of_, "mpi") != "shm" && hellos[0].silence > 0) watch_hosts(hellos[0].silence);
}

template <typename Value>
std::vector<Value> Communicator::gather_all(const Value& mine, Duration timeout) {
  try {
    return all_gather(mine, duplicate_.comm, timeout);
  } catch (const Timeout&) {
    duplicate_.comm = MPI_COMM_NULL;
    throw;
  }
}

/// Throws the same error on all ranks, except a Timeout.
void Communicator::watch_hosts(int seconds) {
  struct Failure {
    std::int32_t kind = 0;  ///< an ErrorKind; 0 for none
    std::array<char, 1020> text{};
  } failure;
  const auto try_to = [&](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      failure.kind = static_cast<std::int32_t>(error.kind());
      std::string_view(error.what()).copy(failure.text.data(), failure.text.size() - 1);
    }
  };
  try_to([&] {
    const auto num_hosts = std::set<int>(host_of_.begin(), host_of_.end()).size();
    reserve_open_files(num_hosts + Acceptor::max_strangers, fmt::format("rank {} on host {}", rank_, host_name()));
    watch_ = std::make_shared<HostWatch>(secret_, rank_, host_of_);
  });
  const auto places = gather_all(watch_ ? watch_->place() : Place(), options_.timeout);
  const Duration limit = std::min<Duration>(options_.timeout, std::chrono::seconds(30));
  const bool all_listen = std::ranges::all_of(places, [](const Place& each) { return each.port != 0; });
  if (all_listen) try_to([&] { watch_->connect(places, Deadline::after(limit)); });
  // Another rank may try to connect for the whole time before it sends its result.
  const Duration longer = options_.timeout > Duration::max() / 2 ? options_.timeout : options_.timeout + limit;
  for (const Failure& each : gather_all(failure, longer)) {
    if (each.kind != 0) throw_error(static_cast<ErrorKind>(each.kind), each.text.data());
  }
  watch_->start(seconds);
}

Communicator::~Communicator() {
  end(false);
}

/// Returns whether every rank has left and none was lost. The wait is short after a failure, because another rank may
/// hang. A failure is a cause, or an exception such as a Timeout that no engine has seen.
bool Communicator::end(bool has_failed) {
  if (duplicate_.comm == MPI_COMM_NULL) return false;
  has_failed |= ProcessFailure::exists() || std::uncaught_exceptions() > exceptions_before_;
  bool have_left = true;
  for (const auto& transport : transports_) {
    if (!transport->has_left()) {
      std::fprintf(stderr,
                   "levada: rank %d destroys its levada::mpi::Communicator or Job while an engine over it is in use; "
                   "destroy the engine, its channels and leases first\n",
                   rank_);
      MPI_Abort(duplicate_.comm, EXIT_FAILURE);
    }
    transport->wait_until_over(has_failed ? failed_leave_timeout : options_.leave_timeout);
    have_left &= !transport->has_losses();
    has_failed |= transport->has_failed();
  }
  // MPI_Comm_free() and MPI_Finalize() are collective and have no timeout.
  have_left = have_left && meets(duplicate_.comm, has_failed ? failed_leave_timeout : options_.leave_timeout);
  if (have_left) MPI_Comm_free(&duplicate_.comm);
  duplicate_.comm = MPI_COMM_NULL;
  return have_left;
}

Communicator::Duplicate::~Duplicate() {
  if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
}

std::shared_ptr<Engine> Communicator::make_far_engine() {
  // MPI has at least 32,768 tags. Engines that only some ranks have left must have different tags.
  constexpr int max_engines = 16'000;
  const int tag = 2 * (num_engines_ % max_engines);
  transports_.push_back(
      std::make_shared<MpiTransport>(MpiTransport::Settings{.communicator = duplicate_.comm,
                                                            .header_tag = tag,
                                                            .body_tag = tag + 1,
                                                            .max_piece_bytes = options_.max_piece_bytes,
                                                            .watch = watch_},
                                     rank_, host_of_));
  return p2p::make_engine(
      transports_.back(),
      {.memory_bytes = options_.memory_bytes, .heartbeat = options_.heartbeat, .degree = options_.degree});
}

std::shared_ptr<Engine> Communicator::make_engine() {
  std::erase_if(transports_, [](const auto& each) { return each->is_over() && !each->has_losses(); });
  ++num_engines_;
  if (options_.engine == "mpi") return make_far_engine();
  const int host = host_of_[static_cast<std::size_t>(rank_)];
  const auto count_until = [&](auto end) { return static_cast<int>(std::count(host_of_.begin(), end, host)); };
  auto near = shm::meet(count_until(host_of_.begin() + rank_), count_until(host_of_.end()),
                        {fmt::format("MPI job, engine {}, host {}", num_engines_, host), secret_},
                        {.memory_bytes = options_.memory_bytes, .timeout = options_.timeout});
  if (options_.engine == "shm") return near;
  return joined::make_engine(std::move(near), make_far_engine(),
                             {.degree = options_.degree, .leave_timeout = options_.leave_timeout});
}

Job::~Job() {
  if (!communicator_) return;
  const bool has_failed = engine_ && engine_->cause();
  engine_.reset();
  const bool have_left = communicator_->end(has_failed);
  communicator_.reset();
  if (must_finalize_ && have_left) MPI_Finalize();
}

Job join(const Options& options) {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized == 0) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread()");
  }
  Job job;
  job.communicator_ = std::make_unique<Communicator>(MPI_COMM_WORLD, options);
  job.engine_ = job.communicator_->make_engine();
  job.must_finalize_ = is_initialized == 0;
  log_engine(job.engine_->info());
  return job;
}

}  // namespace levada::mpi
