#include "levada/report/pipeline_report.h"

#include <span>
#include <utility>

namespace levada::report {

Bytes encode(const PipelineReport& pipeline) {
  ByteWriter writer;
  writer.put_sized(pipeline.json);
  writer.put_sized(pipeline.finding);
  writer.put(static_cast<std::uint32_t>(pipeline.processes.size()));
  for (const ProcessReport& process : pipeline.processes) {
    writer.put_sized(process.name);
    writer.put(static_cast<std::uint32_t>(process.stages.size()));
    for (const std::string& stage : process.stages) writer.put_sized(stage);
    writer.put_sized(levada::encode(std::span(&process.trace, 1)));
  }
  return std::move(writer).take();
}

PipelineReport decode_pipeline(ByteView bytes) {
  constexpr std::size_t min_text = 4, min_process = 3 * 4;
  ByteReader reader(bytes);
  PipelineReport pipeline;
  pipeline.json = reader.get_string();
  pipeline.finding = reader.get_string();
  pipeline.processes.resize(reader.get_count(min_process));
  for (ProcessReport& process : pipeline.processes) {
    process.name = reader.get_string();
    process.stages.resize(reader.get_count(min_text));
    for (std::string& stage : process.stages) stage = reader.get_string();
    auto traces = decode_stage_traces(reader.get_sized());
    if (traces.size() != 1) reader.fail("not one trace for each process");
    process.trace = std::move(traces.front());
  }
  reader.expect_end();
  return pipeline;
}

}  // namespace levada::report
