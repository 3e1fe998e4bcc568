#include "python/src/corpus/corpus.h"

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "levada/feed/step_cursor.h"
#include "levada/report/progress.h"
#include "python/src/base/bytes.h"
#include "python/src/base/callables.h"
#include "python/src/base/errors.h"
#include "python/src/bindings.h"
#include "python/src/corpus/tokenizers.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

void warn(const std::string& warning) {
  const PythonCall python;
  if (python) PySys_FormatStderr("levada: %s\n", printable_lines(warning).c_str());
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

/// Throws InvalidType if an option has another type, InvalidArgument if it is out of range.
template <typename T>
T option(const nb::kwargs& given, const char* name, const char* expected) {
  try {
    return nb::cast<T>(given[name]);
  } catch (const nb::cast_error&) {
    const auto text = fmt::format("{} must be {}, got {}", name, expected, nb::repr(given[name]).c_str());
    const bool takes_integers = std::is_convertible_v<std::int64_t, T> && !std::is_same_v<T, bool>;
    if (takes_integers && nb::isinstance<nb::int_>(given[name])) throw InvalidArgument(text);
    throw InvalidType(text);
  }
}

/// Returns a path given as bytes, which are not always UTF-8. Throws InvalidArgument if it contains a zero byte.
std::string path_of(nb::handle given) {
  const auto bytes = nb::cast<nb::bytes>(given);
  std::string path(static_cast<const char*>(bytes.data()), bytes.size());
  if (path.find('\0') != path.npos) throw InvalidArgument(fmt::format("the path {} has a zero byte", printable(path)));
  return path;
}

}  // namespace

NamedCorpus corpus_of(const nb::kwargs& given) {
  CorpusOptions options;
  options.sequence = option<std::int64_t>(given, "seq_length", "a whole number");
  if (options.sequence < 1) {
    throw InvalidArgument(fmt::format("seq_length must be at least 1 token, got {}", options.sequence));
  }
  const auto seed = option<std::uint64_t>(given, "seed", "a whole number from 0 on");
  if (option<bool>(given, "shuffle", "True or False")) options.shuffle_seed = seed;
  options.epochs = option<std::int64_t>(given, "epochs", "a whole number");
  options.each_once = option<bool>(given, "each_once", "True or False");
  options.packing = parse_packing(option<std::string>(given, "packing", "a str"));
  options.pad_to = option<std::int64_t>(given, "pad_to", "a whole number");
  options.attention_mask = option<bool>(given, "attention_mask", "True or False");
  options.reset_position_ids = option<bool>(given, "reset_position_ids", "True or False");
  options.reset_attention_mask = option<bool>(given, "reset_attention_mask", "True or False");
  options.eod_mask_loss = option<bool>(given, "eod_mask_loss", "True or False");
  options.ids = DType::parse(option<std::string>(given, "dtype", "a str"));
  options.split = option<std::vector<double>>(given, "split", "numbers");
  options.part = option<std::string>(given, "part", "a str");
  options.tokenizer = tokenizer_of(given["tokenizer"]);
  options.end_of_document = option<std::string>(given, "eod", "a str");
  options.text_field = option<std::string>(given, "text_field", "a str");
  options.skip_bad = option<bool>(given, "skip_bad", "True or False");
  options.max_bad = option<double>(given, "max_bad", "a number");
  options.formats = nb::cast<std::vector<TextFormat>>(given["formats"]);
  options.resume_weights = option<bool>(given, "resume_weights", "True or False");
  options.cache_dir = path_of(given["cache_dir"]);
  options.cache_bytes = option<std::optional<std::uint64_t>>(given, "cache_size", "a number of bytes, or None");
  options.remote = nb::cast<const RemoteFiles&>(given["remote"]);
  options.io.threads = option<int>(given, "io_threads", "a whole number");
  options.io.warn = warn;
  std::vector<std::string> paths;
  for (const nb::handle path : given["paths"]) paths.push_back(path_of(path));
  return {std::move(paths), std::move(options)};
}

void bind_corpus(nb::module_& module) {
  nb::class_<Source>(module, "Source", "A source of batches.");
  nb::class_<Corpus, Source>(module, "CorpusSource", "The documents of files as numbered samples.")
      .def_prop_ro("sequences", &Corpus::sequences)
      .def_prop_ro("tokens", &Corpus::tokens)
      .def_prop_ro("documents", &Corpus::documents)
      .def_prop_ro("stored_documents", &Corpus::stored_documents)
      .def_prop_ro("files", &Corpus::files)
      .def_prop_ro("skipped", &Corpus::left_out)
      .def_prop_ro("bad_lines", [](const Corpus& corpus) { return corpus.bad_lines().count; })
      .def_prop_ro("bad_places", [](const Corpus& corpus) { return corpus.bad_lines().first; })
      .def_prop_ro("digest", &Corpus::digest)
      .def(
          "resume",
          [](Corpus& corpus, const nb::bytes& cursor) {
            return corpus.resume(StepCursor::decode(view_of(cursor)).source);
          },
          nb::arg("cursor"))
      .def(
          "cursor",
          [](const Corpus& corpus, std::int64_t next) {
            return to_bytes(corpus.cursor(std::min(next, corpus.size().value_or(next))));
          },
          nb::arg("next"), "Returns the state before that sample, or at the end of the data.")
      .def(
          "of_epochs",
          [](const Corpus& corpus, std::int64_t epochs) { return std::make_shared<Corpus>(corpus.of_epochs(epochs)); },
          nb::arg("epochs"),
          "Returns the same samples for this number of epochs; 0 means endlessly many. Shares the open files.");
  module.def("open_corpus", &open_corpus, nb::arg("options"),
             nb::sig("def open_corpus(**options: typing.Any) -> CorpusSource"));
}

}  // namespace levada::python
