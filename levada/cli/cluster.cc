#include "levada/cli/cluster.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/cli/command.h"
#include "levada/report/numbers.h"

namespace levada::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A comparison takes a second for this many ranks.
constexpr std::int64_t max_ranks = 262'144;
/// Bytes of a stored token: int32, the larger of Megatron-LM's usual types.
constexpr std::uint64_t stored_token_bytes = 4;

std::optional<int> parse_count(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < 1) return {};
  return count;
}

/// Returns the bytes of one "Gb/s", "kB/s", ...; 0 for an unknown unit.
double bytes_of_unit(std::string_view unit) {
  constexpr std::string_view prefixes = "kMGT";
  double scale = 1;
  const auto prefix = unit.empty() ? std::string_view::npos : prefixes.find(unit.front());
  if (prefix != std::string_view::npos) {
    scale = std::pow(1000.0, static_cast<double>(prefix + 1));
    unit.remove_prefix(1);
  }
  if (unit == "B/s") return scale;
  return unit == "b/s" || unit == "bit/s" ? scale / 8 : 0;
}

double parse_positive_duration(std::string_view option, const std::string& text) {
  const double seconds = std::chrono::duration<double>(parse_duration(text)).count();
  if (!(seconds > 0)) throw InvalidArgument(fmt::format("{} is {}; it must be longer than 0", option, text));
  return seconds;
}

double parse_message_time(const std::string& text) {
  constexpr double max_seconds = 1;
  const double seconds = parse_positive_duration("--message", text);
  if (seconds <= max_seconds) return seconds;
  throw InvalidArgument(
      fmt::format("--message is {}, which is {}; it must be at most a second: write microseconds as 200us", text,
                  report::format_seconds(seconds)));
}

Cluster parse_cluster(const ClusterArguments& arguments, const Job& job) {
  const auto [hosts, ranks_per_host] = parse_hosts(arguments.hosts.value());
  Cluster cluster{.hosts = hosts,
                  .ranks_per_host = ranks_per_host,
                  .link_bytes_per_s = parse_speed("--link", arguments.link),
                  .copy_bytes_per_s = parse_speed("--memory", arguments.memory),
                  .message_s = parse_message_time(arguments.message),
                  .degree = arguments.degree};
  if (cluster.degree < 1) throw InvalidArgument(fmt::format("--degree must be at least 1, got {}", cluster.degree));
  if (!arguments.storage.empty()) cluster.storage_bytes_per_s = parse_speed("--storage", arguments.storage);
  cluster.stored_bytes = stored_token_bytes * job.fields.front().shape.element_count().value_or(0);
  return cluster;
}

std::string speed_text(double bytes_per_s) {
  return fmt::format("{:g} GB/s", bytes_per_s / 1e9);
}

std::string limit_text(const Cost& cost) {
  switch (cost.limit()) {
    case Limit::link: return fmt::format("link of host {}", cost.link.host);
    case Limit::memory: return fmt::format("memory of host {}", cost.memory.host);
    case Limit::messages: return fmt::format("messages of host {}", cost.messages.host);
    case Limit::storage: break;
  }
  return "storage";
}

std::string recommendation(const Comparison& comparison) {
  const Cost& best = recommended(comparison.costs, comparison.step_s);
  const auto step = report::format_seconds(comparison.step_s);
  const auto name = best.readers.to_string();
  if (best.seconds() <= max_share_of_step * comparison.step_s) {
    return fmt::format(
        "Recommended: --readers {}. Among the choices that take at most a tenth of a training step of {} (--step), it "
        "reads the least, with the fewest readers.\n",
        name, step);
  }
  return fmt::format(
      "Recommended: --readers {}, the fastest. Every choice takes more than a tenth of a training step of {} "
      "(--step).\n",
      name, step);
}

/// Returns for example "dp, host".
std::string readers_text(const Cost& cost) {
  std::string text = cost.readers.to_string();
  for (const Readers& readers : cost.same) text += ", " + readers.to_string();
  return text;
}

Json load_as_json(const Load& load, const char* unit) {
  return {{unit, load.amount}, {"host", load.host}, {"seconds", load.seconds}};
}

Json cost_as_json(const Cost& cost, bool has_storage_speed) {
  Json same = Json::array();
  for (const Readers& readers : cost.same) same.push_back(readers.to_string());
  return {
      {"readers", cost.readers.to_string()},
      {"same", same},
      {"num_readers", cost.num_readers},
      {"read_bytes", cost.read_bytes},
      {"crossing_bytes", cost.crossing_bytes},
      {"link", load_as_json(cost.link, "bytes")},
      {"memory", load_as_json(cost.memory, "bytes")},
      {"messages", load_as_json(cost.messages, "messages")},
      {"storage",
       {{"bytes", cost.storage.amount}, {"seconds", has_storage_speed ? Json(cost.storage.seconds) : Json(nullptr)}}},
      {"seconds", cost.seconds()},
      {"limit", to_string(cost.limit())}};
}

}  // namespace

void add_cluster_options(CLI::App& command, ClusterArguments& arguments) {
  command.option_defaults()->group("With --hosts");
  auto* hosts =
      command.add_option("--hosts", arguments.hosts, "Hosts and ranks per host: compares the choices of readers")
          ->type_name("64x8");
  add_option(command, "--link", arguments.link, "SPEED", "Bandwidth of a host's link in each direction, with --hosts");
  add_option(command, "--memory", arguments.memory, "SPEED", "Copy rate of a host's memory");
  add_option(command, "--message", arguments.message, "TIME", "Time that a rank spends on each message between hosts");
  command.add_option("--storage", arguments.storage, "Total bandwidth of storage for all readers [no limit]")
      ->type_name("SPEED");
  add_option(command, "--step", arguments.step, "TIME", "Duration of a training step");
  add_option(command, "--degree", arguments.degree, "N", "Maximum number of hosts that one host sends a message to");
  for (const char* name : {"--link", "--memory", "--message", "--storage", "--step", "--degree"}) {
    command.get_option(name)->needs(hosts);
  }
}

std::pair<int, int> parse_hosts(std::string_view text) {
  const auto cross = text.find('x');
  if (cross != std::string_view::npos) {
    const auto hosts = parse_count(text.substr(0, cross)), ranks = parse_count(text.substr(cross + 1));
    if (hosts && ranks && std::int64_t{*hosts} * *ranks <= max_ranks) return {*hosts, *ranks};
  }
  throw InvalidArgument(
      fmt::format("--hosts is '{:.40}'; write hosts and the ranks on each as 64x8, at most {} ranks in all", text,
                  report::with_commas(max_ranks)));
}

double parse_speed(std::string_view option, std::string_view text) {
  double count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const double speed = error == std::errc{} ? count * bytes_of_unit(unit) : 0;
  if (speed >= 1 && std::isfinite(speed)) return speed;
  throw InvalidArgument(fmt::format(
      "{} is '{:.40}'; write a speed as 100Gb/s (bits) or 12.5GB/s (bytes), with k, M, G or T", option, text));
}

Comparison compare_readers(const JobArguments& job_arguments, const ClusterArguments& arguments) {
  const auto [hosts, ranks_per_host] = parse_hosts(arguments.hosts.value());
  Comparison comparison;
  comparison.step_s = parse_positive_duration("--step", arguments.step);
  comparison.job = parse_job(job_arguments, hosts * ranks_per_host);
  comparison.cluster = parse_cluster(arguments, comparison.job);
  const Job& job = comparison.job;
  comparison.costs =
      levada::compare_readers(job.fields, job.layout, job.mesh, job.divide, comparison.cluster, {job.readers});
  return comparison;
}

std::string Comparison::to_table() const {
  const auto mesh = job.mesh.to_string();
  auto text = output_style().bold(fmt::format("One step of {} on {} with {} each, batches of {} x {} tokens",
                                              mesh.empty() ? "one rank" : mesh, report::counted(cluster.hosts, "host"),
                                              report::counted(cluster.ranks_per_host, "rank"),
                                              job.fields.front().shape[0], job.fields.front().shape[1]));
  text += fmt::format("\nlink {} each way, memory {}, {} for a message{}\n\n", speed_text(cluster.link_bytes_per_s),
                      speed_text(cluster.copy_bytes_per_s), report::format_seconds(cluster.message_s),
                      cluster.storage_bytes_per_s ? ", storage " + speed_text(*cluster.storage_bytes_per_s) : "");
  TextTable table({"readers", "how many", "read", "cross", "busiest link", "messages", "time", "limited by"});
  for (const Cost& cost : costs) {
    table.add({readers_text(cost), report::with_commas(cost.num_readers), format_bytes(cost.read_bytes),
               format_bytes(cost.crossing_bytes), format_bytes(cost.link.amount),
               report::with_commas(static_cast<std::int64_t>(cost.messages.amount)),
               report::format_seconds(cost.seconds()), limit_text(cost)});
  }
  return text + report::to_string(table, {false, true, true, true, true, true, true}, output_style(), "  ") + "\n" +
         recommendation(*this);
}

std::string Comparison::to_json() const {
  Json choices = Json::array();
  for (const Cost& cost : costs) choices.push_back(cost_as_json(cost, cluster.storage_bytes_per_s.has_value()));
  const Json json = {
      {"hosts", cluster.hosts},
      {"ranks_per_host", cluster.ranks_per_host},
      {"mesh", job.mesh.to_string()},
      {"divide", to_string(job.divide)},
      {"batch", job.fields.front().shape[0]},
      {"sequence", job.fields.front().shape[1]},
      {"link_bytes_per_s", cluster.link_bytes_per_s},
      {"memory_bytes_per_s", cluster.copy_bytes_per_s},
      {"message_s", cluster.message_s},
      {"storage_bytes_per_s", cluster.storage_bytes_per_s ? Json(*cluster.storage_bytes_per_s) : Json(nullptr)},
      {"step_s", step_s},
      {"degree", cluster.degree},
      {"choices", choices},
      {"recommended", recommended(costs, step_s).readers.to_string()}};
  return json_text(json);
}

}  // namespace levada::cli
