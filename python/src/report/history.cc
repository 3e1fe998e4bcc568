// Writes the history of feeds and pipelines to files.
#include "levada/cli/feed_history.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "levada/base/error.h"
#include "levada/engine/collect.h"
#include "levada/feed/context_parts.h"
#include "levada/feed/feed.h"
#include "levada/mesh/mesh.h"
#include "levada/report/clock_shift.h"
#include "levada/report/pipeline_report.h"
#include "python/src/base/bytes.h"
#include "python/src/base/escaped_text.h"
#include "python/src/bindings.h"
#include "python/src/job/launch.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using report::FeedReport;
using report::PipelineReport;

/// The history that a rank sends to rank 0.
struct RankHistory {
  report::RankReport rank;
  Trace trace;
  std::optional<PipelineReport> pipeline;
};

report::RankReport rank_of(const nb::dict& given) {
  const auto get = [&](const char* name, auto& value) { value = nb::cast<std::decay_t<decltype(value)>>(given[name]); };
  report::RankReport rank;
  for (const auto& [axis, at] : nb::cast<nb::dict>(given["coords"])) {
    rank.coordinates.emplace_back(nb::cast<std::string>(axis), nb::cast<int>(at));
  }
  get("batches", rank.batches);
  get("samples", rank.samples);
  get("bytes", rank.bytes);
  get("wait_s", rank.wait_seconds);
  get("seconds", rank.seconds);
  get("copied_batches", rank.copied_batches);
  get("reader", rank.is_reader);
  get("bytes_sent", rank.bytes_sent);
  get("bytes_read", rank.bytes_read);
  return rank;
}

Bytes pack(const report::RankReport& rank, const nb::bytes& trace, const std::optional<nb::bytes>& pipeline) {
  ByteWriter writer;
  writer.put_sized(levada::encode(rank));
  writer.put_sized(view_of(trace));
  writer.put_sized(pipeline ? view_of(*pipeline) : ByteView());
  return std::move(writer).take();
}

/// Decodes untrusted bytes; returns an empty history if the rank has left. The result's times are on rank 0's clock.
RankHistory unpack(const cli::RankMessage& message) {
  if (message.bytes.empty()) return {};
  ByteReader reader(message.bytes);
  RankHistory history{.rank = levada::decode<report::RankReport>(reader.get_sized()), .trace = {}, .pipeline = {}};
  if (const ByteView trace = reader.get_sized(); !trace.empty()) history.trace = decode_trace(trace);
  if (const ByteView pipeline = reader.get_sized(); !pipeline.empty()) {
    history.pipeline = report::decode_pipeline(pipeline);
  }
  reader.expect_end();
  report::shift_times(history.trace, message.clock_shift_ns);
  if (history.pipeline) report::shift_times(*history.pipeline, message.clock_shift_ns);
  return history;
}

FeedReport report_of(const nb::dict& feed) {
  FeedReport report;
  report.mesh = nb::cast<std::string>(feed["mesh"]);
  report.engine = nb::cast<std::string>(feed["engine"]);
  report.engine_choice = nb::cast<std::string>(feed["engine_choice"]);
  report.readers = nb::cast<std::string>(feed["readers"]);
  report.steps = nb::cast<std::int64_t>(feed["steps"]);
  report.end_cause = nb::cast<std::string>(feed["end"]);
  report.sequence = nb::cast<std::int64_t>(feed["sequence"]);
  report.batch = nb::cast<std::int64_t>(feed["batch"]);
  report.balance = nb::cast<std::optional<report::BalanceReport>>(feed["balance"]);
  return report;
}

struct Files {
  cli::HistoryFiles names;
  FeedReport report;
  report::FeedHistory history;
};

void add(Files& files, std::size_t rank, int reader, RankHistory history) {
  history.rank.rank = static_cast<int>(rank);
  if (history.pipeline) {
    history.pipeline->rank = static_cast<int>(rank);
    files.history.pipelines.push_back(std::move(*history.pipeline));
  }
  files.history.edges.push_back({reader, static_cast<int>(rank), history.rank.bytes});
  files.history.traces.push_back(std::move(history.trace));
  files.report.ranks.push_back(std::move(history.rank));
}

void write(Files files, const Mesh& mesh, const EngineInfo& info, const std::vector<cli::RankMessage>& all) {
  const auto readers = Readers::parse(files.report.readers).of(mesh, info.host_of);
  for (std::size_t i = 0; i < all.size(); ++i) add(files, i, readers.at(i), unpack(all[i]));
  const bool has_own_cp = files.report.balance && files.report.balance->by.max_cp > 1;
  const Mesh as_fed = has_own_cp ? with_cp_as_data(mesh) : mesh;
  for (const int first : as_fed.group(0, as_fed.data_axes())) {
    files.report.samples += files.report.ranks.at(static_cast<std::size_t>(first)).samples;
  }
  cli::write_history(files.names, files.report, std::move(files.history));
}

/// Collective: rank 0 writes the files. Every rank returns once they exist, or raises the reason that they do not.
void write_feed_history(const Membership& job, const Mesh& mesh, const nb::dict& feed, const nb::dict& rank,
                        const nb::bytes& trace, const std::optional<nb::bytes>& pipeline, const std::string& page,
                        const std::string& trace_file, double timeout) {
  Files files{.names = {.report = page, .trace = trace_file, .tell = false}, .report = report_of(feed), .history = {}};
  files.history.paths = {nb::cast<std::string>(feed["source"])};
  files.history.error = escaped(feed["error"]);
  const Bytes mine = pack(rank_of(rank), trace, pipeline);
  const auto limit = duration_of(timeout);
  interruptible_on(job, "writing a report", [&](const auto& engine, const auto& poll) {
    const auto& info = engine->info();
    const auto all = cli::gather(*engine, mine, Deadline::after(limit), &poll);
    std::exception_ptr failure;
    std::string said;
    if (info.rank == 0) {
      try {
        write(std::move(files), mesh, info, all);
      } catch (const std::exception& error) {
        failure = std::current_exception();
        said = error.what();
      }
    }
    auto told = agree(*engine, as_bytes(said), Deadline::after(limit), "writing a report", &poll);
    if (failure) std::rethrow_exception(failure);
    if (!told[0].empty()) throw SourceError(fmt::format("rank 0 could not write the report: {}", as_text(told[0])));
    return told;
  });
}

void write_pipeline_history(const nb::bytes& pipeline, const std::string& page, const std::string& trace_file) {
  const auto report = report::decode_pipeline(view_of(pipeline));
  const nb::gil_scoped_release released;
  cli::write_history({.report = page, .trace = trace_file, .tell = false}, report);
}

}  // namespace

void bind_history(nb::module_& module) {
  module.def("write_feed_history", &write_feed_history, nb::arg("job"), nb::arg("mesh"), nb::arg("feed"),
             nb::arg("rank"), nb::arg("trace"), nb::arg("pipeline").none(), nb::kw_only(), nb::arg("page"),
             nb::arg("trace_file"), nb::arg("timeout"),
             nb::sig("def write_feed_history(job: Membership, mesh: Mesh, feed: dict[str, typing.Any], rank: dict[str, "
                     "typing.Any], trace: "
                     "bytes, pipeline: bytes | None, *, page: str, trace_file: str, timeout: float) -> None"),
             "Writes a page and a trace of all ranks' activity, if their files are named. Collective.");
  module.def("write_pipeline_history", &write_pipeline_history, nb::arg("pipeline"), nb::kw_only(), nb::arg("page"),
             nb::arg("trace_file"),
             "Writes a page and a trace of a pipeline without a feed, if their files are named.");
  module.def(
      "check_history_files",
      [](const std::string& page, const std::string& trace_file) {
        cli::check_outputs(cli::outputs_of({.report = page, .trace = trace_file}));
      },
      nb::arg("page"), nb::arg("trace_file"), "Raises InvalidArgument if a file cannot be written.");
}

}  // namespace levada::python
