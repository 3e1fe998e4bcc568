#include "levada/report/pipeline_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "levada/base/error.h"
#include "levada/report/numbers.h"

namespace levada::report {
namespace {

using Json = nlohmann::json;
using Numbers = std::map<std::string, std::size_t>;

constexpr std::array roles = {PipelineRole::dispatcher, PipelineRole::worker, PipelineRole::consumer};
constexpr int most_workers = 1 << 16;
constexpr std::size_t most_counts = 1 << 20;  ///< of stages in processes, so that a lie cannot ask for any memory

void refuse(const std::string& why) {
  throw InvalidArgument(fmt::format("this is no report of a pipeline: {}", why));
}

PipelineRole role_of(const Json& json) {
  const auto name = json.get<std::string>();
  const auto found = std::find_if(roles.begin(), roles.end(), [&](auto role) { return describe(role) == name; });
  if (found == roles.end()) refuse(fmt::format("there is no process {:.40}", name));
  return *found;
}

double seconds_of(const Json& json) {
  const double seconds = json.get<double>();
  if (!(seconds >= 0)) refuse("a time below zero");
  return seconds;
}

std::int64_t count_of(const Json& json) {
  if (!json.is_number_integer() || json.get<std::int64_t>() < 0) refuse("a count that is no number of things");
  return json.get<std::int64_t>();
}

std::size_t number_of(const Numbers& numbers, const Json& json) {
  const auto found = numbers.find(json.get<std::string>());
  if (found == numbers.end()) refuse("a stage that it does not have");
  return found->second;
}
std::optional<std::size_t> number_or_none(const Numbers& numbers, const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(number_of(numbers, json));
}

/// Adds the stage to `numbers`, which has those before it.
StageReport stage_of(const Json& json, Numbers& numbers) {
  StageReport stage{
      .name = json.at("name"), .what = json.at("what"), .role = role_of(json.at("process")), .inputs = {}};
  for (const Json& input : json.at("inputs")) stage.inputs.push_back(number_of(numbers, input));
  numbers.emplace(stage.name, numbers.size());
  return stage;
}

PipelineProcessReport process_of(const Json& json, const Numbers& numbers) {
  PipelineProcessReport process{.name = json.at("name"), .role = role_of(json.at("role")), .stages = {}, .trace = {}};
  process.stages.resize(numbers.size());
  for (const Json& stage : json.at("stages")) {
    process.stages[number_of(numbers, stage.at("name"))] = {.items = count_of(stage.at("items")),
                                                            .skipped = count_of(stage.at("skipped")),
                                                            .busy_seconds = seconds_of(stage.at("busy_s")),
                                                            .waited_seconds = seconds_of(stage.at("waited_s"))};
  }
  return process;
}

PipelineReport pipeline_of(const Json& json) {
  PipelineReport pipeline;
  Numbers numbers;
  for (const Json& stage : json.at("stages")) pipeline.stages.push_back(stage_of(stage, numbers));
  if (pipeline.stages.empty() || numbers.size() != pipeline.stages.size()) refuse("stages without names of their own");
  const std::int64_t workers = count_of(json.at("workers"));
  if (workers > most_workers) refuse(fmt::format("{} workers", workers));
  pipeline.workers = static_cast<int>(workers);
  pipeline.seconds = seconds_of(json.at("seconds"));
  pipeline.dealt = number_or_none(numbers, json.at("dealt"));
  pipeline.gathered = number_or_none(numbers, json.at("gathered"));
  pipeline.holds_back = number_or_none(numbers, json.at("holds_back"));
  pipeline.load = seconds_of(json.at("load"));
  const Json& processes = json.at("processes");
  if (processes.size() > most_counts / pipeline.stages.size()) refuse("more processes than there can be");
  for (const Json& process : processes) pipeline.processes.push_back(process_of(process, numbers));
  return pipeline;
}

/// What may help where a stage of that process holds the rest back.
std::string advice(const PipelineReport& pipeline, const StageReport& stage) {
  if (pipeline.workers == 0) {
    return "All stages run in one process: with workers, those behind dispatch() or shard() would run beside it.";
  }
  switch (stage.role) {
    case PipelineRole::worker: return "Make it quicker, or let more workers share it.";
    case PipelineRole::dispatcher:
      return stage.inputs.empty()
                 ? "There is one such process: shard() right behind a source whose items have numbers, "
                   "instead of dispatch(), lets each worker read its own part."
                 : "There is one such process: what can be copied goes behind dispatch(), where the "
                   "workers share it.";
    case PipelineRole::consumer: break;
  }
  return "That is the process whose loop takes the items: before what needs all ranks or the order of one process, the "
         "workers would share it.";
}

}  // namespace

std::string_view describe(PipelineRole role) {
  switch (role) {
    case PipelineRole::dispatcher: return "dispatcher";
    case PipelineRole::worker: return "worker";
    case PipelineRole::consumer: break;
  }
  return "consumer";
}

PipelineReport pipeline_from_json(std::string_view text, ByteView traces) try {
  auto pipeline = pipeline_of(Json::parse(text));
  if (traces.empty()) return pipeline;
  auto decoded = decode_stage_traces(traces);
  if (decoded.size() != pipeline.processes.size()) {
    refuse(fmt::format("{} traces of {} processes", decoded.size(), pipeline.processes.size()));
  }
  for (std::size_t i = 0; i < decoded.size(); ++i) pipeline.processes[i].trace = std::move(decoded[i]);
  return pipeline;
} catch (const nlohmann::json::exception& error) {
  throw InvalidArgument(fmt::format("this is no report of a pipeline: {}", error.what()));
}

std::string find_bottleneck(const PipelineReport& pipeline) {
  if (!pipeline.holds_back) {
    return fmt::format(
        "No stage holds the rest back: the busiest process works {} of the time, so it is the loop that takes the "
        "items "
        "that sets the pace.",
        format_share(pipeline.load));
  }
  const StageReport& stage = pipeline.stages.at(*pipeline.holds_back);
  const auto whose = stage.role == PipelineRole::dispatcher ? "the dispatching process's time"
                     : stage.role == PipelineRole::consumer ? "the consumer's time"
                     : pipeline.workers > 1                 ? "each worker's time"
                                                            : "the worker's time";
  return fmt::format("{} holds the rest back: it takes {} of {}. {}", stage.name,
                     format_share(std::min(pipeline.load, 1.0)), whose, advice(pipeline, stage));
}

}  // namespace levada::report
