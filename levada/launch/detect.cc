#include <fmt/format.h>

#include <charconv>

#include "levada/launch/inherited.h"
#include "levada/launch/launch.h"

namespace levada::launch {
namespace {

using Get = std::function<const char*(const char*)>;

bool has(const Get& get, const char* name) {
  const char* text = get(name);
  return text != nullptr && *text != '\0';
}

/// Returns the variable as a number, or nothing if it is not set.
std::optional<int> number(const Get& get, const char* name) {
  if (!has(get, name)) return {};
  const std::string_view text = get(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    throw InvalidArgument(
        fmt::format("the environment variable {} is '{}', which is not a valid rank or number of ranks", name, text));
  }
  return value;
}

/// Returns "A=1 B=2" for the variables that are set, or an empty text if the first one, which identifies the job, is
/// not set.
std::string rendezvous_of(const Get& get, std::initializer_list<const char*> names) {
  if (!has(get, *names.begin())) return {};
  std::string rendezvous;
  for (const char* name : names) {
    if (has(get, name)) rendezvous += fmt::format("{}{}={}", rendezvous.empty() ? "" : " ", name, get(name));
  }
  return rendezvous;
}

struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

void check_within(std::optional<int> rank, const char* rank_name, int size, const char* size_name) {
  if (!rank || *rank < size) return;
  throw InvalidArgument(
      fmt::format("the environment contradicts itself: {} is {}, but {} is {}", rank_name, *rank, size_name, size));
}

/// Returns what is wrong with a set of variables that lacks rank or size, or an empty text. A size of 1 without a rank,
/// or only a local rank of 0, is valid, because a process may be the only one.
std::string half_set(const Get& get, const Names& names) {
  const bool has_rank = has(get, names.rank), has_size = has(get, names.size);
  if (has_rank && has_size) return {};
  const auto missing_variable = [&](const char* there, const char* missing) {
    return fmt::format(
        "the environment describes an incomplete job: {} is {}, but {} is not set; set both, or unset {}", there,
        get(there), missing, there);
  };
  if (has_rank) return missing_variable(names.rank, names.size);
  if (has_size) return *number(get, names.size) > 1 ? missing_variable(names.size, names.rank) : std::string();
  return number(get, names.local_rank).value_or(0) > 0 ? missing_variable(names.local_rank, names.rank) : std::string();
}

/// Reads a job from its variables; returns nothing unless both rank and size are set.
std::optional<Environment> read(const Get& get, const Names& names) {
  if (!has(get, names.rank) || !has(get, names.size)) return {};
  Environment job;
  job.source = fmt::format("{} and {}", names.rank, names.size);
  job.rank = *number(get, names.rank);
  job.size = *number(get, names.size);
  check_within(job.rank, names.rank, job.size, names.size);
  job.local_rank = number(get, names.local_rank);
  job.local_size = number(get, names.local_size);
  if (!job.local_size) return job;
  job.local_size_source = names.local_size;
  check_within(job.local_rank, names.local_rank, *job.local_size, names.local_size);
  if (*job.local_size > job.size) {
    throw InvalidArgument(fmt::format("the environment contradicts itself: {} is {}, but {} is {}", names.local_size,
                                      *job.local_size, names.size, job.size));
  }
  return job;
}

/// Returns entry `node` of SLURM's list of tasks by node, such as "4(x2),3".
std::optional<int> slurm_tasks_on(std::string_view list, int node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int tasks = 0;
    int times = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc{}) return {};
    at = parsed.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, times);
      if (parsed.ec != std::errc{} || parsed.ptr == end || *parsed.ptr != ')') return {};
      at = parsed.ptr + 1;
    }
    if (node < times) return tasks;
    node -= times;
    if (at < end && *at++ != ',') return {};
  }
  return {};
}

Names slurm_names(const Get& get) {
  return {"SLURM_PROCID", has(get, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID",
          "SLURM_LOCAL_SIZE"};
}

/// Reads SLURM's variables, only within a job step: a batch script has a rank, too, but no other ranks have been
/// started.
std::optional<Environment> read_slurm(const Get& get) {
  if (!has(get, "SLURM_STEP_ID")) return {};
  auto job = read(get, slurm_names(get));
  if (!job) return {};
  const bool by_step = has(get, "SLURM_STEP_NUM_TASKS");
  const char* tasks = by_step ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (has(get, tasks)) {
    const auto local = slurm_tasks_on(get(tasks), number(get, "SLURM_NODEID").value_or(0));
    if (!local)
      throw InvalidArgument(
          fmt::format("the environment variable {} is '{}', which has no entry for this node", tasks, get(tasks)));
    job->local_size = *local;
    job->local_size_source = tasks;
    check_within(job->local_rank, "SLURM_LOCALID", *local, tasks);
  }
  job->rendezvous = rendezvous_of(get, {"SLURM_JOB_ID", "SLURM_STEP_ID"});
  return job;
}

constexpr Names levada_names{"LEVADA_RANK", "LEVADA_WORLD_SIZE", "LEVADA_LOCAL_RANK", "LEVADA_LOCAL_WORLD_SIZE"};
constexpr Names open_mpi_names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE"};

/// DeepSpeed's launcher sets LOCAL_SIZE.
Names torch_names(const Get& get) {
  return {"RANK", "WORLD_SIZE", "LOCAL_RANK", has(get, "LOCAL_WORLD_SIZE") ? "LOCAL_WORLD_SIZE" : "LOCAL_SIZE"};
}

/// Hydra and Cray's PALS use different names for the variables of the ranks on a host.
Names pmi_names(const Get& get) {
  const bool is_pals = has(get, "PMI_LOCAL_SIZE");
  return {"PMI_RANK", "PMI_SIZE", is_pals ? "PMI_LOCAL_RANK" : "MPI_LOCALRANKID",
          is_pals ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS"};
}

std::optional<Environment> read_open_mpi(const Get& get) {
  auto job = read(get, open_mpi_names);
  if (!job) return {};
  job->rendezvous = rendezvous_of(get, {"PMIX_NAMESPACE"});
  if (job->rendezvous.empty()) job->rendezvous = rendezvous_of(get, {"OMPI_MCA_ess_base_jobid"});
  return job;
}

std::optional<Environment> read_pmi(const Get& get) {
  auto job = read(get, pmi_names(get));
  if (job) job->rendezvous = rendezvous_of(get, {"PMI_JOBID"});
  return job;
}

/// Fills in what RANK and WORLD_SIZE do not specify, from the variables of the launcher that they were derived from.
void complete(Environment& job, const std::optional<Environment>& launched) {
  if (!launched || launched->rank != job.rank || launched->size != job.size) return;
  if (job.rendezvous.empty()) job.rendezvous = launched->rendezvous;
  if (job.local_size) return;
  if (!job.local_rank) job.local_rank = launched->local_rank;
  job.local_size = launched->local_size;
  job.local_size_source = launched->local_size_source;
}

/// Throws InvalidArgument for an incomplete set of variables, with which the process would read all data itself. RANK
/// or WORLD_SIZE may be set without the other if it agrees with the launcher's `job`.
void expect_no_half_set(const Get& get, const std::optional<Environment>& job) {
  const auto torch = torch_names(get);
  const bool agrees = job && number(get, torch.rank).value_or(job->rank) == job->rank &&
                      number(get, torch.size).value_or(job->size) == job->size;
  std::vector<Names> sets;
  if (!agrees) sets.push_back(torch);
  if (!job && has(get, "SLURM_STEP_ID")) sets.push_back(slurm_names(get));
  if (!job) sets.insert(sets.end(), {open_mpi_names, pmi_names(get)});
  for (const Names& names : sets) {
    const auto why = half_set(get, names);
    if (!why.empty()) throw InvalidArgument(why);
  }
}

/// Returns whether this process was started by a torchrun that a rank of run_local() started. run_local() itself
/// removes torchrun's variables.
bool is_torchruns_within(const Get& get) {
  return has(get, links_variable) && has(get, "TORCHELASTIC_RUN_ID") && has(get, "RANK") && has(get, "WORLD_SIZE");
}

/// Throws InvalidArgument if run_local() cannot have set all four variables, because it sets RANK and WORLD_SIZE to the
/// values of LEVADA_RANK and LEVADA_WORLD_SIZE: another launcher has started this process, or the program has changed
/// them.
void expect_same_place(const Get& get, const Environment& job) {
  if (!has(get, links_variable)) return;
  const auto torch = read(get, torch_names(get));
  if (!torch || (torch->rank == job.rank && torch->size == job.size)) return;
  throw InvalidArgument(
      fmt::format("the environment contradicts itself: LEVADA_RANK and LEVADA_WORLD_SIZE are {} and {}, but RANK and "
                  "WORLD_SIZE are {} and {}; in a process that another launcher starts, unset LEVADA_RANK, "
                  "LEVADA_WORLD_SIZE and {}",
                  job.rank, job.size, torch->rank, torch->size, links_variable));
}

}  // namespace

std::optional<Environment> detect(const Get& get) {
  auto job = is_torchruns_within(get) ? std::nullopt : read(get, levada_names);
  if (job) {
    expect_same_place(get, *job);
    job->rendezvous = rendezvous_of(get, {"LEVADA_RENDEZVOUS"});
    return job;
  }
  if (const auto why = half_set(get, levada_names); !why.empty()) throw InvalidArgument(why);
  job = read(get, torch_names(get));
  const bool is_torch = job.has_value();
  if (job) {
    job->rendezvous =
        rendezvous_of(get, {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  }
  for (const auto& read_launcher : {read_slurm, read_open_mpi, read_pmi}) {
    if (job && job->local_size && !job->rendezvous.empty()) break;
    const auto launched = read_launcher(get);
    if (job) complete(*job, launched);
    else job = launched;
  }
  if (!is_torch) expect_no_half_set(get, job);
  return job;
}

}  // namespace levada::launch
