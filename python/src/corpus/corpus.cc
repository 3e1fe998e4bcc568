#include "python/src/corpus/corpus.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <utility>

#include "levada/base/text.h"
#include "levada/feed/step_cursor.h"
#include "levada/report/progress.h"
#include "python/src/base/bytes.h"
#include "python/src/bindings.h"
#include "python/src/corpus/remote_files.h"
#include "python/src/corpus/text_formats.h"
#include "python/src/corpus/tokenizers.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

void warn(const std::string& warning) {
  const nb::gil_scoped_acquire gil;
  PySys_FormatStderr("levada: %s\n", printable_lines(warning).c_str());
}

std::shared_ptr<Corpus> open_corpus(const nb::kwargs& given) {
  struct Interrupted {};
  struct Progress {
    std::atomic<bool> is_interrupted = false;
    report::ProgressLine line{"tokenizing"};
  };
  auto [paths, options] = corpus_of(given);
  const auto progress = std::make_shared<Progress>();
  options.progress = [progress](const PrepareProgress& now) {
    if (progress->is_interrupted) throw Interrupted();
    if (!progress->line.is_due()) return;
    const auto amount = fmt::format("{} of {}", format_bytes(now.bytes_done), format_bytes(now.bytes_total));
    progress->line.update(now.bytes_done, now.bytes_total, amount);
  };
  const auto open = [progress, paths = std::move(paths), options = std::move(options)] {
    auto corpus = std::make_shared<Corpus>(Corpus::open(paths, options));
    progress->line.clear();
    return corpus;
  };
  return interruptible(open, [&] { progress->is_interrupted = true; });
}

}  // namespace

NamedCorpus corpus_of(const nb::kwargs& given) {
  CorpusOptions options;
  options.sequence = nb::cast<std::int64_t>(given["sequence"]);
  options.shuffle_seed = nb::cast<std::optional<std::uint64_t>>(given["shuffle_seed"]);
  options.epochs = nb::cast<std::int64_t>(given["epochs"]);
  options.packing = parse_packing(nb::cast<std::string>(given["packing"]));
  options.pad_to = nb::cast<std::int64_t>(given["pad_to"]);
  options.attention_mask = nb::cast<bool>(given["attention_mask"]);
  options.reset_position_ids = nb::cast<bool>(given["reset_position_ids"]);
  options.reset_attention_mask = nb::cast<bool>(given["reset_attention_mask"]);
  options.eod_mask_loss = nb::cast<bool>(given["eod_mask_loss"]);
  options.ids = DType::parse(nb::cast<std::string>(given["dtype"]));
  options.split = nb::cast<std::vector<double>>(given["split"]);
  options.part = nb::cast<std::string>(given["part"]);
  options.tokenizer = tokenizer_of(given["tokenizer"]);
  options.end_of_document = nb::cast<std::string>(given["eod"]);
  options.text_field = nb::cast<std::string>(given["text_field"]);
  options.skip_bad = nb::cast<bool>(given["skip_bad"]);
  options.formats = formats_of(given["formats"]);
  options.resume_weights = nb::cast<bool>(given["resume_weights"]);
  options.cache_dir = nb::cast<nb::bytes>(given["cache_dir"]).c_str();
  options.cache_bytes = nb::cast<std::optional<std::uint64_t>>(given["cache_size"]);
  options.remote = remote_files_of(given["remote"]);
  options.io.threads = nb::cast<int>(given["io_threads"]);
  options.io.warn = warn;
  std::vector<std::string> paths;  // names of files are bytes, not always UTF-8
  for (const nb::handle path : given["paths"]) paths.emplace_back(nb::cast<nb::bytes>(path).c_str());
  return {std::move(paths), std::move(options)};
}

void bind_corpus(nb::module_& module) {
  nb::class_<Source>(module, "Source", "Where batches come from.");
  nb::class_<Corpus, Source>(module, "CorpusSource", "The documents of some files as numbered samples.")
      .def_prop_ro("sequences", &Corpus::sequences)
      .def_prop_ro("tokens", &Corpus::tokens)
      .def_prop_ro("documents", &Corpus::documents)
      .def_prop_ro("digest", &Corpus::digest)
      .def(
          "resume",
          [](Corpus& corpus, const nb::bytes& cursor) {
            return corpus.resume(StepCursor::decode(view_of(cursor)).source);
          },
          nb::arg("cursor"))
      .def(
          "of_epochs",
          [](const Corpus& corpus, std::int64_t epochs) { return std::make_shared<Corpus>(corpus.of_epochs(epochs)); },
          nb::arg("epochs"), "The same samples, gone through so many times; 0: without end. Shares what is open.");
  module.def("open_corpus", &open_corpus, nb::arg("options"),
             nb::sig("def open_corpus(**options: typing.Any) -> CorpusSource"));
}

}  // namespace levada::python
