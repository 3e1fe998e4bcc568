// A pipeline's report for tests: one dispatching process, two workers in which "parse" is slow.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "levada/report/pipeline_report.h"

namespace levada::report::testing {

inline nlohmann::json stage_json(const std::string& name, const std::string& what, const std::string& process,
                                 const std::vector<std::string>& inputs) {
  return {{"name", name}, {"what", what}, {"process", process}, {"inputs", inputs}};
}

inline nlohmann::json process_json(const std::string& name, const std::string& role, nlohmann::json stages) {
  return {{"name", name}, {"role", role}, {"stages", std::move(stages)}};
}

inline nlohmann::json counts_json(const std::string& name, int items, double busy, double waited) {
  return {{"name", name}, {"items", items}, {"skipped", 0}, {"busy_s", busy}, {"waited_s", waited}};
}

inline nlohmann::json example_json() {
  using Json = nlohmann::json;
  const Json parse = counts_json("parse", 500, 9, 0.5);
  return {{"workers", 2},
          {"dealt", "dispatch"},
          {"gathered", "parse"},
          {"stages", Json::array({stage_json("source", "source numbers", "dispatcher", {}),
                                  stage_json("dispatch", "dispatch", "dispatcher", {"source"}),
                                  stage_json("parse", "map", "worker", {"dispatch"})})},
          {"seconds", 10},
          {"holds_back", "parse"},
          {"load", 0.9},
          {"processes", Json::array({process_json("consumer (process 10)", "consumer", Json::array()),
                                     process_json("dispatcher (process 11)", "dispatcher",
                                                  Json::array({counts_json("source", 1000, 0.1, 0),
                                                               counts_json("dispatch", 1000, 0, 0.1)})),
                                     process_json("worker 0 (process 12)", "worker", Json::array({parse})),
                                     process_json("worker 1 (process 13)", "worker", Json::array({parse}))})}};
}

inline PipelineReport example() {
  std::vector<StageTrace> traces(4);
  traces[2].spans = {{.stage = 2, .items = 10, .begin_ns = 5000, .duration_ns = 90'000, .waited_ns = 30'000},
                     {.work = StageWork::input, .stage = 2, .begin_ns = 10'000, .duration_ns = 30'000},
                     {.work = StageWork::input, .other = 1, .begin_ns = 100'000, .duration_ns = 50'000}};
  traces[2].samples = {{10'000'000, 5}, {30'000'000, 15}};
  return pipeline_from_json(example_json().dump(), encode(traces));
}

}  // namespace levada::report::testing
