#include <fmt/format.h>

#include "levada/base/bytes.h"
#include "levada/base/json.h"
#include "levada/cli/command.h"
#include "levada/cli/machine.h"
#include "levada/engine/choice.h"
#include "levada/launch/launch.h"
#include "levada/report/style.h"

namespace levada::cli {
namespace {

std::string cores_text(const Machine& machine) {
  if (!machine.core_quota) return fmt::format("{}", machine.cores);
  return fmt::format("{}, of which the control group allows {:.3g}", machine.cores, *machine.core_quota);
}

std::string memory_text(const Machine& machine) {
  auto text = format_bytes(machine.memory);
  if (machine.memory_limit < machine.memory) {
    text += fmt::format(", of which the control group allows {}", format_bytes(machine.memory_limit));
  }
  return text + fmt::format("; {} available", format_bytes(machine.memory_available));
}

std::string links_text(const Machine& machine) {
  std::vector<std::string> texts;
  for (const auto& link : machine.links) texts.push_back(fmt::format("{} {:g} Gb/s", link.name, link.gb_s));
  return texts.empty() ? "of unknown speed" : fmt::format("{}", fmt::join(texts, ", "));
}

/// Returns the engine that would join ranks started as this process was.
std::string engine_text() {
  const auto over_hosts = [](std::string_view near) {
    return fmt::format("{0}c10d once torch.distributed is initialized, {0}mpi by levada::mpi::join()", near);
  };
  try {
    const auto job = launch::detect();
    if (!job) return fmt::format("shm for ranks of one host; for several hosts: {}", over_hosts("shm+"));
    if (job->size == 1) return describe_engine("inproc", 1, 1);
    if (!job->local_size) {
      return fmt::format("shm if all {} ranks are on this host, which no environment variable shows; otherwise {}",
                         job->size, over_hosts("shm+"));
    }
    const bool is_one_host = *job->local_size == job->size;
    const bool is_direct = *job->local_size == 1 && job->size - 1 <= default_degree;
    const auto name = is_one_host ? "shm" : over_hosts(is_direct ? "" : "shm+");
    return describe_engine(name, job->size, *job->local_size);
  } catch (const InvalidArgument& error) {
    return fmt::format("none: {}", error.what());
  }
}

std::string machine_table(const Machine& machine) {
  TextTable table({"what", "here"});
  table.add({"engines", fmt::format("{}", fmt::join(launch::engines(), ", "))});
  table.add({"engine", engine_text()});
  table.add({"kernel", machine.kernel});
  table.add({"cores", cores_text(machine)});
  table.add({"memory", memory_text(machine)});
  table.add({"control groups", machine.cgroups});
  table.add({"memory files", machine.memory_files ? "yes" : "refused"});
  table.add({"shared huge pages", machine.shmem_huge_pages});
  table.add({"lockable memory", machine.memlock ? format_bytes(*machine.memlock) : "unlimited"});
  table.add({"open files", fmt::format("{}", machine.open_files)});
  table.add({"PAGEMAP_SCAN", machine.pagemap_scan});
  table.add({"copying", fmt::format("{:.1f} GB/s on one core, {:.1f} GB/s on all (at most 8)", machine.copy_gb_s,
                                    machine.host_copy_gb_s)});
  table.add({"waking a thread", fmt::format("{:.1f} us", machine.wake_us)});
  table.add({"a message over TCP",
             machine.message_us ? fmt::format("{:.1f} us", *machine.message_us) : "no loopback network"});
  table.add({"network links", links_text(machine)});
  return report::to_string(table, {}, output_style(), "  ");
}

std::string as_text(const Machine& machine, const std::vector<std::string>& advice) {
  auto text =
      output_style().bold("This machine, as seen by ranks that share its memory") + "\n\n" + machine_table(machine);
  text += "\n  " + output_style().bold("For levada plan --hosts, on hosts like this one") + "\n";
  text += fmt::format("  {}\n", plan_options_for(machine));
  for (const auto& sentence : unmeasured_plan_options(machine)) text += fmt::format("  - not measured: {}\n", sentence);
  text += "\n";
  if (advice.empty()) return text + "  No limit on speed was found.\n";
  text += "  " + output_style().bold("Limits on speed, and how to lift them") + "\n";
  for (const auto& sentence : advice) text += fmt::format("  - {}\n", sentence);
  return text;
}

std::string as_json(const Machine& machine, const std::vector<std::string>& advice) {
  auto links = nlohmann::ordered_json::array();
  for (const auto& link : machine.links) links.push_back({{"name", link.name}, {"gb_s", link.gb_s}});
  const nlohmann::ordered_json json = {
      {"engines", launch::engines()},
      {"engine", engine_text()},
      {"kernel", machine.kernel},
      {"cores", machine.cores},
      {"core_quota", machine.core_quota ? nlohmann::ordered_json(*machine.core_quota) : nullptr},
      {"memory", machine.memory},
      {"memory_limit", machine.memory_limit},
      {"memory_available", machine.memory_available},
      {"cgroups", machine.cgroups},
      {"memfd", machine.memory_files},
      {"shmem_huge_pages", machine.shmem_huge_pages},
      {"memlock", machine.memlock ? nlohmann::ordered_json(*machine.memlock) : nullptr},
      {"open_files", machine.open_files},
      {"pagemap_scan", machine.pagemap_scan == "yes"},
      {"copy_gb_s", machine.copy_gb_s},
      {"host_copy_gb_s", machine.host_copy_gb_s},
      {"wake_us", machine.wake_us},
      {"message_us", machine.message_us ? nlohmann::ordered_json(*machine.message_us) : nullptr},
      {"links", links},
      {"plan_options", plan_options_for(machine)},
      {"plan_options_unmeasured", unmeasured_plan_options(machine)},
      {"advice", advice}};
  return json_text(json) + "\n";
}

}  // namespace

void add_doctor(CLI::App& app, Invocation& invocation) {
  auto json = std::make_shared<bool>(false);
  auto* command =
      app.add_subcommand("doctor", "Show what this machine offers, what limits its speed, and how to lift the limits");
  command->add_flag("--json", *json, "One JSON object on standard output");
  command->footer("Example:\n  levada doctor");
  command->callback([json, &invocation] {
    invocation.action = [json] {
      const auto machine = examine_machine();
      const auto advice = advice_for(machine);
      print(*json ? as_json(machine, advice) : as_text(machine, advice));
      return 0;
    };
  });
}

}  // namespace levada::cli
