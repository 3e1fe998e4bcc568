#include "python/src/launch.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <tuple>

#include "levada/cli/cli.h"
#include "levada/engine/shm/shm.h"
#include "levada/launch/launch.h"
#include "python/src/bindings.h"
#include "python/src/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

Duration seconds(double count) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(count));
}

Membership join(const std::string& engine, double timeout) {
  const launch::JoinOptions options{.engine = engine, .timeout = seconds(timeout)};
  return Membership(interruptible([options] { return launch::join(options); }, [] { return false; }));
}

Membership meet(int rank, int size, const std::string& meeting, double timeout) {
  const shm::Options options{.timeout = seconds(timeout)};
  return Membership(interruptible([=] { return shm::meet(rank, size, meeting, options); }, [] { return false; }));
}

std::tuple<int, std::string> run_local(int size, const std::vector<std::string>& command) {
  const nb::gil_scoped_release released;
  const auto result = launch::run_local(size, {command.begin() + 1, command.end()},
                                        {.program = command.front(), .signal_grace = std::chrono::seconds(5)});
  return {result.exit_status, result.message};
}

int command(const std::vector<std::string>& arguments, const std::vector<std::string>& self) {
  std::vector<const char*> pointers;
  for (const auto& argument : arguments) pointers.push_back(argument.c_str());
  const nb::gil_scoped_release released;
  return cli::run(static_cast<int>(pointers.size()), pointers.data(), self);
}

std::optional<std::tuple<int, int>> place() {
  const auto job = launch::detect([](const char* name) -> const char* { return std::getenv(name); });
  if (!job) return std::nullopt;
  return std::tuple(job->rank, job->size);
}

}  // namespace

void bind_launch(nb::module_& module) {
  nb::class_<Membership>(module, "Membership", nb::is_weak_referenceable(), "This process's place in its job.")
      .def_prop_ro("rank", [](const Membership& job) { return job.engine().info().rank; })
      .def_prop_ro("size", [](const Membership& job) { return job.engine().info().size; })
      .def_prop_ro(
          "engine", [](const Membership& job) { return job.engine().info().name; }, "\"shm\", \"c10d\" or \"inproc\".")
      .def_prop_ro(
          "host_of", [](const Membership& job) { return job.engine().info().host_of; },
          "Each rank's host, numbered from 0.")
      .def("leave", &Membership::leave, nb::call_guard<nb::gil_scoped_release>(),
           "Leaves the job: the other ranks are not alarmed. What has been received stays.");
  module.def("join", &join, nb::arg("engine"), nb::arg("timeout"), "Joins the job that the environment tells of.");
  module.def("meet", &meet, nb::arg("rank"), nb::arg("size"), nb::arg("meeting"), nb::arg("timeout"),
             "Joins the ranks of this host that give the same name for their meeting, over shared memory.");
  module.def("place", &place, "Rank and size as the environment tells them; None outside a job.");
  module.def("run_local", &run_local, nb::arg("size"), nb::arg("command"),
             "Starts `size` ranks with a command line and waits for them: exit status and what went wrong.");
  module.def("command", &command, nb::arg("arguments"), nb::arg("self"),
             "Runs the `levada` command and gives its exit status.");
}

}  // namespace levada::python
