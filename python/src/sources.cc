#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/base/text.h"
#include "levada/corpus/corpus.h"
#include "levada/corpus/cursor.h"
#include "levada/feed/step_cursor.h"
#include "levada/report/progress.h"
#include "levada/tree/codec.h"
#include "python/src/bindings.h"
#include "python/src/bytes.h"
#include "python/src/errors.h"
#include "python/src/handoff.h"
#include "python/src/rebuild.h"
#include "python/src/remote_files.h"
#include "python/src/sources.h"
#include "python/src/text_formats.h"
#include "python/src/tokenizers.h"
#include "python/src/trees.h"
#include "python/src/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

constexpr std::size_t longest_message = std::size_t{64} << 10;

/// What Python makes.
struct PythonHandoff final : Handoff {
  using Handoff::Handoff;
  BatchClasses classes;
};

/// A message, why there is none, and how many items have come since.
using GivenState = std::optional<std::tuple<nb::bytes, std::string, std::int64_t>>;

nb::bytes pack_state(nb::handle state, bool allow_pickle) {
  const auto message = encode_tree(to_tree(state, allow_pickle, "state"));
  return nb::bytes(message.data(), message.size());
}

/// And how many items have come since.
std::pair<std::optional<LoaderState>, std::int64_t> state_of(const GivenState& given) {
  if (!given) return {std::nullopt, 0};
  const auto& [bytes, failure, since] = *given;
  const auto message = view_of(bytes);
  return {LoaderState{{message.begin(), message.end()}, failure}, since};
}

void prepare(PythonHandoff& handoff, nb::handle batch, const GivenState& given, bool allow_pickle) {
  auto lent = lend(batch, allow_pickle, handoff.classes, handoff.batch_memory().get(), handoff.spent());
  auto [state, since] = state_of(given);
  handoff.prepare({std::move(lent.tree), std::move(lent.place), std::move(state), since});
}

using Size = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

void tell(PythonHandoff& handoff, const std::vector<Size>& told, const GivenState& given) {
  std::vector<SampleSize> sizes;
  for (const auto& [tokens, squares, first, second, padding] : told) {
    sizes.push_back({tokens, squares, {first, second}, padding});
  }
  auto [state, since] = state_of(given);
  const nb::gil_scoped_release released;
  handoff.tell(std::move(sizes), std::move(state), since);
}

std::optional<std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>>> wanted(PythonHandoff& handoff) {
  std::optional<Handoff::Wanted> wanted;
  {
    const nb::gil_scoped_release released;
    wanted = handoff.wanted();
  }
  handoff.spent()->clear();
  if (!wanted) return std::nullopt;
  return std::tuple(wanted->skipped, wanted->taken, std::move(wanted->gathered));
}

/// The end of a traceback says most.
void fail(PythonHandoff& handoff, std::string text, bool is_argument) {
  if (text.size() > longest_message) text = "..." + text.substr(text.size() - longest_message);
  handoff.fail(is_argument ? ErrorKind::invalid_argument : ErrorKind::source, std::move(text));
}

std::tuple<std::int64_t, std::int64_t, nb::object> read_cursor(const nb::bytes& bytes, bool allow_pickle) {
  const auto cursor = IterableCursor::decode(view_of(bytes));
  if (!cursor.state || !cursor.state->failure.empty()) throw InvalidArgument("a state of a feed without its loader's");
  auto memory = std::make_shared<Bytes>(cursor.state->message);
  SchemaCache schemas;
  const auto state = read_message(*memory, memory, schemas).content;
  return {cursor.next, cursor.position, Rebuilder(allow_pickle).rebuild(state)};
}

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
  return interruptible(open, [&] { return progress->is_interrupted = true; });
}

/// Stands for a source that this rank could not open: every rank hears why at the first step.
class Unopened final : public Source {
 public:
  Unopened(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  std::optional<std::int64_t> size() const override { return std::nullopt; }
  std::optional<Tree> read(std::int64_t, std::int64_t, Memory&) override { throw_error(kind_, message_); }
  Bytes cursor(std::int64_t) const override { return {}; }
  std::string activity() const override { return "failing to open"; }
  ReadStats stats() const override { return {}; }

 private:
  ErrorKind kind_;
  std::string message_;
};

std::shared_ptr<Source> unopened(const std::string& kind, const std::string& message) {
  return std::make_shared<Unopened>(kind_of(kind), message);
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

void bind_sources(nb::module_& module) {
  nb::class_<Source>(module, "Source", "Where batches come from.");
  nb::class_<PythonHandoff, Source>(module, "Handoff", "Batches that one thread makes when a feed asks for them.")
      .def(nb::init<std::int64_t, std::int64_t, std::string, bool>(), nb::arg("samples"), nb::arg("position"),
           nb::arg("activity"), nb::arg("counts_rows"))
      .def(
          "wanted", &wanted,
          "Blocks until something is wanted. How many items to pass over; how many to take then, for tell(), or 0; and "
          "which of those taken last to make one item of. Without the latter two: the next item. None "
          "when there is no more to do.")
      .def("tell", &tell, nb::arg("sizes"), nb::arg("state").none(),
           "Of the items that were taken, fewer at the end: positions in a row, their square, two weights, and how "
           "many positions are padding. state: "
           "as "
           "of prepare().")
      .def("prepare", &prepare, nb::arg("batch").none(), nb::arg("state").none(), nb::kw_only(),
           nb::arg("allow_pickle") = false,
           nb::sig(
               "def prepare(self, batch: object, state: tuple[bytes, str, int] | None, *, allow_pickle: bool = False) "
               "-> None"),
           "The item for give(). Raises TypeError for what cannot cross. Its memory is used until the next wanted(). "
           "state: what pack_state() made of the loader's, or b\"\"; why it could not; and how many items have come "
           "since. None where the loader has not been asked since the last one.")
      .def("give", &Handoff::give, nb::call_guard<nb::gil_scoped_release>(),
           "Gives what was prepared. Tensors of empty() that nobody else holds by now are sent as they lie.")
      .def("end", &Handoff::end, nb::arg("more"), nb::call_guard<nb::gil_scoped_release>(),
           "There are but `more` items after those given.")
      .def(
          "stop", [](PythonHandoff& handoff) { handoff.stop({}); }, "Nothing is wanted any more.")
      .def("fail", &fail, nb::arg("text"), nb::kw_only(), nb::arg("is_argument") = false,
           "The iterator raised; is_argument: what it gave is an invalid argument.");
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
  module.def("unopened", &unopened, nb::arg("kind"), nb::arg("message"));
  module.def("pack_state", &pack_state, nb::arg("state").none(), nb::kw_only(), nb::arg("allow_pickle") = false,
             nb::sig("def pack_state(state: object, *, allow_pickle: bool = False) -> bytes"),
             "A loader's state as bytes. Raises TypeError, naming its place, for what they cannot hold.");
  module.def("read_cursor", &read_cursor, nb::arg("cursor"), nb::kw_only(), nb::arg("allow_pickle") = false,
             nb::sig("def read_cursor(cursor: bytes, *, allow_pickle: bool = False) -> tuple[int, int, typing.Any]"));
  module.def(
      "corpus_position",
      [](const nb::bytes& cursor) { return Cursor::decode(StepCursor::decode(view_of(cursor)).source).next; },
      nb::arg("cursor"));
}

}  // namespace levada::python
