#include "python/src/job/launch.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <stop_token>
#include <thread>
#include <tuple>

#include "levada/base/open_files.h"
#include "levada/base/threads.h"
#include "levada/base/unique_fd.h"
#include "levada/cli/error_reporter.h"
#include "levada/engine/choice.h"
#include "levada/engine/collect.h"
#include "levada/engine/collective_order.h"
#include "levada/engine/greeting.h"
#include "levada/engine/joined/joined.h"
#include "levada/engine/process_failure.h"
#include "levada/engine/shm/shm.h"
#include "levada/feed/feed.h"
#include "levada/launch/launch.h"
#include "python/src/base/bytes.h"
#include "python/src/base/callables.h"
#include "python/src/base/errors.h"
#include "python/src/base/escaped_text.h"
#include "python/src/batch/tensors.h"
#include "python/src/bindings.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// Resources of this process that do not survive a fork: threads and shared memory.
struct ProcessResources {
  std::mutex mutex;
  std::vector<std::weak_ptr<const void>> engines;
};

ProcessResources& kept() {
  static ProcessResources of_this_process;
  return of_this_process;
}

Membership join(const std::string& engine, double timeout) {
  std::stop_source stop;
  const launch::JoinOptions options{
      .engine = engine, .timeout = duration_of(timeout), .remind = cli::print_error, .stop = stop.get_token()};
  return Membership(interruptible([options] { return launch::join(options); }, [&] { stop.request_stop(); }));
}

Secret secret_of(const nb::bytes& bytes) {
  Secret secret;
  if (bytes.size() != secret.size()) {
    throw InvalidArgument(fmt::format("a secret must have {} bytes, got {}", secret.size(), bytes.size()));
  }
  std::ranges::copy(view_of(bytes), secret.begin());
  return secret;
}

Membership meet(int rank, int size, const std::string& rendezvous, const nb::bytes& secret, double timeout,
                std::size_t memory_bytes) {
  const shm::MeetingPlace place{rendezvous, secret_of(secret)};
  std::stop_source stop;
  const shm::Options options{.memory_bytes = memory_bytes,
                             .timeout = duration_of(timeout),
                             .remind = cli::print_error,
                             .stop = stop.get_token()};
  return Membership(interruptible([&] { return shm::meet(rank, size, place, options); }, [&] { stop.request_stop(); }));
}

void check_greetings_of(const std::vector<nb::bytes>& sent) {
  std::vector<Greeting> greetings(sent.size());
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    const ByteView bytes = view_of(sent[rank]);
    if (bytes.size() == sizeof(Greeting)) std::ranges::copy(bytes, greetings[rank].begin());
  }
  check_greetings(greetings);
}

/// Returns whether a signal handler raised. A leaving rank cannot propagate the exception, so it is written to standard
/// error.
bool is_interrupted() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  nb::python_error().discard_as_unraisable("levada: leaving the job");
  return true;
}

Membership join_hosts(const Membership& near, const Membership& far, int degree, double leave_timeout) {
  auto near_engine = near.shared(), far_engine = far.shared();
  const nb::gil_scoped_release released;
  return Membership(joined::make_engine(
      std::move(near_engine), std::move(far_engine),
      {.degree = degree, .leave_timeout = duration_of(leave_timeout), .is_interrupted = is_interrupted}));
}

/// Takes ownership of `sockets`.
Membership link(int rank, int size, const std::vector<int>& sockets, double timeout) {
  std::vector<UniqueFd> links;
  if (rank == 0) links.emplace_back();
  for (const int socket : sockets) links.emplace_back(socket);
  std::stop_source stop;
  const shm::Options options{.timeout = duration_of(timeout), .stop = stop.get_token()};
  return Membership(
      interruptible([rank, size, options,
                     links = std::move(links)]() mutable { return shm::join(rank, size, std::move(links), options); },
                    [&] { stop.request_stop(); }));
}

/// Kills this process when `process`, or a fork server that started this one, ends. Also kills the processes that this
/// one has started, if it leads a process group. A thread watches `process`. The kernel's death signal cannot do so: it
/// reaches this process only. It is SIGCONT, so that the thread also runs if this process is stopped.
void die_with(pid_t process) {
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  const pid_t self = ::getpid();
  const auto watch = [process](pid_t watched) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, watched, 0)));
    if (!fd) throw EngineError(fmt::format("process {}, which started this one, has ended", process));
    return fd;
  };
  std::array<UniqueFd, 2> watched = {watch(process), watch(::getppid())};
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  start_thread("watching the parent process", [self, watched = std::move(watched)] {
    std::array<pollfd, 2> ends{};
    for (std::size_t i = 0; i < ends.size(); ++i) ends[i] = {.fd = watched[i].get(), .events = POLLIN, .revents = 0};
    while (::poll(ends.data(), ends.size(), -1) < 0) {
    }
    ::kill(-self, SIGKILL);  // fails if this process does not lead a group
    ::kill(self, SIGKILL);
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::vector<nb::bytes> agree(const Membership& job, const nb::bytes& mine, double timeout, const std::string& what) {
  const ByteView own = view_of(mine);
  const auto all = interruptible_on(job, what, [&](const auto& engine, const auto& poll) {
    CollectiveOrder order(*engine, &poll);
    const auto checked = order.as_poll();
    return levada::agree(*engine, own, Deadline::after(duration_of(timeout)), what, &checked);
  });
  std::vector<nb::bytes> parts;
  for (const auto& each : all) parts.push_back(to_bytes(each));
  return parts;
}

nb::object empty(const Membership& job, const std::vector<std::int64_t>& shape, const std::string& dtype, bool torch) {
  Tensor tensor;
  {
    const nb::gil_scoped_release released;
    tensor = job.batch_memory()->empty(DType::parse(dtype), Shape(shape));
  }
  return TensorLibraries().to_python(tensor, torch ? TensorKind::torch : TensorKind::array);
}

std::tuple<int, std::string> run_local(int size, const std::vector<std::string>& command) {
  const nb::gil_scoped_release released;
  const auto result = launch::run_local(
      size, {command.begin() + 1, command.end()},
      {.program = command.front(), .grace = std::chrono::seconds(5), .signal_grace = std::chrono::seconds(5)});
  return {result.exit_status, result.message};
}

std::optional<std::string> unforkable() {
  const std::lock_guard lock(kept().mutex);
  const bool is_used = !std::ranges::all_of(kept().engines, [](const auto& engine) { return engine.expired(); });
  if (!is_used) return std::nullopt;
  return "this process has threads and shared memory of Levada's by now";
}

std::optional<std::tuple<int, int>> place() {
  const auto job = launch::detect();
  if (!job) return std::nullopt;
  return std::tuple(job->rank, job->size);
}

}  // namespace

void keep_from_forking(const std::shared_ptr<const void>& what) {
  const std::lock_guard lock(kept().mutex);
  std::erase_if(kept().engines, [](const auto& engine) { return engine.expired(); });
  kept().engines.push_back(what);
}

void bind_launch(nb::module_& module) {
  nb::class_<Membership>(module, "Membership", nb::is_weak_referenceable(),
                         "This process's membership in a group of ranks.")
      .def_prop_ro("rank", [](const Membership& job) { return job.engine().info().rank; })
      .def_prop_ro("size", [](const Membership& job) { return job.engine().info().size; })
      .def_prop_ro(
          "engine", [](const Membership& job) { return job.engine().info().name; },
          "\"shm\", \"c10d\", \"shm+c10d\" or \"inproc\".")
      .def_prop_ro(
          "engine_choice", [](const Membership& job) { return describe_engine(job.engine().info()); },
          "The engine and why it joins these ranks: \"shm+c10d: 4 ranks on 2 hosts, 2 on each\".")
      .def_prop_ro(
          "host_of", [](const Membership& job) { return job.engine().info().host_of; },
          "The host of each rank, numbered from 0.")
      .def("empty", &empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("torch"),
           nb::sig("def empty(self, shape: collections.abc.Sequence[int], dtype: str, torch: bool) -> typing.Any"),
           "Returns an uninitialized tensor in the memory of the batch that this thread is making.")
      .def(
          "begin_batch", [](const Membership& job, std::size_t bytes) { job.batch_memory()->begin(bytes); },
          nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
          "Begins a batch whose tensors have `bytes` bytes in total, each rounded up to a multiple of 64.")
      .def(
          "subgroup",
          [](const Membership& job, const std::vector<int>& ranks, const std::string& name) {
            const EngineWithoutGil engine(job.shared());
            return Membership(engine->subgroup(ranks, name));
          },
          nb::arg("ranks"), nb::arg("name"),
          "Returns this process's membership among some of the ranks: ranks[i] becomes rank i. Collective over these "
          "ranks, which pass the same name.")
      .def(
          "note_exception",
          [](const Membership& job, const EscapedText& text, std::int64_t step) {
            const EngineWithoutGil engine(job.shared());
            engine->post(Status::make(raised_operation, step, -1, text.utf8));
          },
          nb::arg("text"), nb::arg("step"),
          "Posts that an exception ends this rank, for ranks that wait for it. step: the step at which the rank left a "
          "feed because of the exception, or -1.")
      .def(
          "keep_pages",
          [](const Membership& job, std::uintptr_t address, std::size_t bytes) {
            return job.engine().keep_pages({reinterpret_cast<const std::byte*>(address), bytes});
          },
          nb::arg("address"), nb::arg("bytes"),
          "Returns whether these bytes of a received batch are in an engine's memory. If so, their pages stay the same "
          "until this rank leaves the job.")
      .def("skip_exchange", &Membership::skip_exchange,
           "Counts a call of this group's exchanges that only this rank refused, so that it stays in step with the "
           "other ranks.")
      .def("leave", &Membership::leave, "Leaves the job without an error on other ranks. Received batches stay valid.");
  module.def("join", &join, nb::arg("engine"), nb::arg("timeout"), "Joins the job that the environment describes.");
  module.def(
      "meet", &meet, nb::arg("rank"), nb::arg("size"), nb::arg("rendezvous"), nb::arg("secret"), nb::arg("timeout"),
      nb::kw_only(), nb::arg("memory_bytes") = 0,
      "Joins the ranks of this host that pass the same name for their rendezvous and the same 32 bytes, which only "
      "they know, over shared memory: a rank's batches take at most `memory_bytes`, or as much as the machine "
      "allows.");
  module.def(
      "group_greeting",
      [](const std::string& host) { return nb::bytes(group_greeting(host).data(), sizeof(Greeting)); }, nb::arg("host"),
      "Returns the bytes that each rank of a process group sends the others first.");
  module.def("reserve_open_files", &reserve_open_files, nb::arg("count"), nb::arg("who"),
             "Raises this process's limit so that it can open `count` more files. Raises InvalidArgument, with the "
             "number that "
             "is needed, if the hard limit is too low. `who` names this process.");
  module.def(
      "note_process_exception",
      [](const EscapedText& text, double patience) {
        ProcessFailure::note_exception(text.utf8, duration_of(patience));
      },
      nb::arg("text"), nb::arg("patience"),
      "Notes that an exception of this text ends the process. After `patience` seconds, the process waits only a few "
      "more for ranks that it leaves.");
  module.def("check_greetings", &check_greetings_of, nb::arg("greetings"),
             "Raises EngineError unless all greetings of a group's ranks come from the same release of Levada.");
  module.def("join_hosts", &join_hosts, nb::arg("near"), nb::arg("far"), nb::arg("degree"), nb::arg("leave_timeout"),
             "Joins `near`, the ranks of this host, and `far`, all ranks: messages within a host use `near`, and a "
             "message crosses once to each other host over `far`. A rank sends a message to at most `degree` other "
             "hosts. A leaving rank waits `leave_timeout` seconds for the ends of the channels that it forwards.");
  module.def("choose_engine", &choose_engine, nb::arg("host_of"), nb::arg("between"), nb::arg("degree"),
             "Returns the engine for ranks on these hosts: shm on one host; `between` if each rank is on a separate "
             "host and sends to at most `degree` others; otherwise both.");
  module.def(
      "log_engine", [](const Membership& job) { log_engine(job.engine().info()); }, nb::arg("job"),
      "Writes the choice of the engine to standard error on rank 0 if LEVADA_LOG is info.");
  module.def("link", &link, nb::arg("rank"), nb::arg("size"), nb::arg("sockets"), nb::arg("timeout"),
             "Joins processes that are connected by sockets, from rank 0 to each other rank in order, and closes the "
             "sockets.");
  module.def("die_with", &die_with, nb::arg("process"),
             "Kills this process when that process ends. If it leads a process group, also kills the others in it.");
  module.def("unforkable", &unforkable,
             "Returns the reason why a fork of this process could not use Levada, or None if it could.");
  module.def("place", &place, "Returns rank and size from the environment; None outside a job.");
  module.def(
      "agree", &agree, nb::arg("job"), nb::arg("mine"), nb::arg("timeout"), nb::arg("what"),
      "Returns the bytes of each rank, in the order of ranks. Collective. `what` names the operation in the text of "
      "a Timeout.");
  module.def(
      "run_local", &run_local, nb::arg("size"), nb::arg("command"),
      "Starts `size` ranks with a command line and waits for them. Returns the exit status and the error message.");
}

}  // namespace levada::python
